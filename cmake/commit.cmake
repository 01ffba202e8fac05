# Writes a header with the commit of the checkout. The file is touched only if the commit has changed.
# -DSOURCE: the checkout. -DOUT: the header.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git describe --always --dirty --abbrev=10 --exclude=* WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE commit ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT commit)
    set(commit "unknown commit")
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define LOCKSTEP_COMMIT \"@commit@\"\n" @ONLY)
