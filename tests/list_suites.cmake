# cmake -DBINARY=<test binary> -DOUT=<file> -P list_suites.cmake: writes one add_test a suite of the binary.
execute_process(COMMAND "${BINARY}" --gtest_list_tests OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" lines "${listing}")
set(text "")
foreach(line IN LISTS lines)
    if(line MATCHES "^([A-Za-z0-9_/]+)\\.( *#.*)?$")
        set(suite "${CMAKE_MATCH_1}")
        if(suite STREQUAL "All/CarelessTable")
            continue()  # tests/CMakeLists.txt has an entry a file
        endif()
        string(APPEND text "add_test([=[${suite}]=] \"${BINARY}\" \"--gtest_filter=${suite}.*\")\n"
                           "set_tests_properties([=[${suite}]=] PROPERTIES TIMEOUT 1200)\n")
    endif()
endforeach()
file(WRITE "${OUT}" "${text}")
