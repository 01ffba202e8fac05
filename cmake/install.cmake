# `cmake --install` and a Debian package (cpack): the program, ready recipes and clusters, documents, completion of shells, a manual page.
include(GNUInstallDirs)

set(texts "${CMAKE_BINARY_DIR}/texts")  # the program prints them itself
file(MAKE_DIRECTORY "${texts}")
add_custom_command(TARGET lockstep POST_BUILD VERBATIM WORKING_DIRECTORY "${texts}"
                   COMMAND lockstep completion bash > lockstep
                   COMMAND lockstep completion zsh > _lockstep
                   COMMAND lockstep completion fish > lockstep.fish
                   COMMAND lockstep man > lockstep.1)

install(TARGETS lockstep RUNTIME)
if(SKBUILD)  # a wheel: bin/lockstep and share/lockstep of the environment, where the program finds them
    install(TARGETS lockstep RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python EXCLUDE_FROM_ALL)
    install(DIRECTORY recipes clusters DESTINATION "${SKBUILD_DATA_DIR}/share/lockstep" COMPONENT python EXCLUDE_FROM_ALL)
endif()
# For C++ programs: find_package(lockstep).
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
install(TARGETS lockstep_library EXPORT lockstep LIBRARY)
install(FILES include/lockstep/lockstep.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep")
install(FILES src/base/error.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep/base")
install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstepConfig.cmake DESTINATION "${package}")
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake" DESTINATION "${package}")
install(DIRECTORY examples DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep")
install(DIRECTORY recipes clusters DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES README.md CHANGELOG.md LICENSE cmake/copyright DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES third_party/chart.js/LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME LICENSE.chart.js)
install(FILES "${texts}/lockstep.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
install(FILES "${texts}/lockstep" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${texts}/_lockstep" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions")
install(FILES "${texts}/lockstep.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "Lockstep")
set(CPACK_PACKAGE_CONTACT "Lockstep developers <lockstep@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pretrains large language models on many ranks")
set(CPACK_PACKAGE_DESCRIPTION "Lockstep compiles a recipe (model, layout, batch) into one static program for the whole
training step. The program is checked, its time and memory are planned, and it is run.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)
include(CPack)
