cmake_minimum_required(VERSION 3.25)
# Writes OUT, a C++ file with the text of files as string literals. FILES: name=path, separated by commas; each becomes
# lockstep::report::<name>.
string(REPLACE "," ";" FILES "${FILES}")
set(text "#include <string_view>\n\nnamespace lockstep::report {\n\n")
foreach(entry IN LISTS FILES)
    string(REGEX MATCH "^([^=]+)=(.*)$" ignored "${entry}")
    set(name "${CMAKE_MATCH_1}")
    set(path "${CMAKE_MATCH_2}")
    file(READ "${path}" content)
    string(APPEND text "extern const std::string_view ${name};\nconst std::string_view ${name} = R\"LOCKSTEP_PAGE(${content})LOCKSTEP_PAGE\";\n")
endforeach()
file(WRITE "${OUT}" "${text}\n}  // namespace lockstep::report\n")
