# pack.cmake - PTX=file OLD=file OUT=file GZIP=program: PTX as it lies in the library.
#
# Most kernels have nothing that the oldest cards lack: then the text for newer ones is OLD's but for the name of the
# card, which takes OLD's text, and OUT is empty.
file(READ ${PTX} text)
if(OLD)
  file(READ ${OLD} old)
  string(REGEX REPLACE "\n\\.target [^\n]*" "" own "${text}")
  string(REGEX REPLACE "\n\\.target [^\n]*" "" old "${old}")
  if(own STREQUAL old)
    file(WRITE ${OUT} "")
    return()
  endif()
endif()
if(GZIP)
  execute_process(COMMAND ${GZIP} -9nc ${PTX} OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
else()
  file(WRITE ${OUT} "${text}")
endif()
