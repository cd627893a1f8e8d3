# Code for cards: PTX of each file of modules.inc by clang, for the oldest cards and for those with matrix instructions
# (sm_80), and the table of all of it, gpu_codes.c.  Included by the root's file; the object is the room device's.
# PTX is text: with zlib it lies in the library as gzip leaves it, a tenth as large.  Text that is the same for both
# lies there once (pack.cmake).
# Without clang, and in builds with sanitizers, whose tests have an emulated card, the table is empty.
set(gpu_codes ${CMAKE_BINARY_DIR}/gpu/gpu_codes.c)
set(gpu_table "/* Made by the build. */\n#include \"device/gpu/image.h\"\n")
set(gpu_rows "")
set(gpu_data "    .section .rodata\n")
set(gpu_ptx "")
pkg_check_modules(ZLIB IMPORTED_TARGET zlib)
set(gpu_zero "    .byte 0\n") # behind text
set(gpu_packed text)
set(gpu_gzip "")
if(ZLIB_FOUND)
  set(gpu_zero "")
  set(gpu_packed gz)
  set(gpu_gzip gzip)
endif()
set(CCACHE_LAUNCHER "")
if(CCACHE)
  set(CCACHE_LAUNCHER ${CCACHE})
endif()
find_program(INGLE_CLANG NAMES clang-14 clang clang-15 clang-16 clang-17 clang-18 clang-19)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS src/device/gpu/kernels/modules.inc)
if(NOT INGLE_CLANG)
  message(STATUS "no clang: no kernels for cards; --gpu will say so")
elseif(NOT INGLE_SANITIZE AND NOT INGLE_FUZZ AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  file(STRINGS src/device/gpu/kernels/modules.inc lines REGEX "^GPU_MODULE")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^GPU_MODULE\\(([a-z0-9_]+), ([0-9]+)\\)" found "${line}")
    set(module ${CMAKE_MATCH_1})
    set(least ${CMAKE_MATCH_2})
    set(oldest "")
    foreach(sm 75 80)
      if(sm LESS least)
        continue()
      endif()
      set(ptx ${CMAKE_BINARY_DIR}/gpu/${module}.${sm}.ptx)
      # A loop that is not unrolled (pass-failed) keeps its arrays in memory.  PTX 7.5 is accepted by the drivers of
      # CUDA 11.5 on, whatever this clang would write.
      add_custom_command(OUTPUT ${ptx} DEPFILE ${ptx}.d DEPENDS src/device/gpu/kernels/${module}.cu
        ${CMAKE_BINARY_DIR}/gpu/card_books.inc
        COMMAND ${CCACHE_LAUNCHER} ${INGLE_CLANG} -std=c++17 -O3 -x cuda --cuda-device-only --cuda-gpu-arch=sm_${sm}
          --cuda-path=/nonexistent -nocudainc -nocudalib -Xclang -target-feature -Xclang +ptx75 -ffp-contract=off
          -Wall -Wextra -Wno-unused-function -Wno-enum-compare -Werror=pass-failed $<$<BOOL:${INGLE_WERROR}>:-Werror>
          -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_BINARY_DIR}/gpu -MD -MF ${ptx}.d -MT ${ptx} -S ${CMAKE_SOURCE_DIR}/src/device/gpu/kernels/${module}.cu -o ${ptx}
        COMMAND ${CMAKE_COMMAND} -DPTX=${ptx} -DSM=${sm} -P ${CMAKE_SOURCE_DIR}/src/device/gpu/kernels/head.cmake
        VERBATIM)
      set(packed ${ptx}.${gpu_packed})
      add_custom_command(OUTPUT ${packed} DEPENDS ${ptx} ${oldest} src/device/gpu/kernels/pack.cmake VERBATIM
        COMMAND ${CMAKE_COMMAND} -DPTX=${ptx} -DOLD=${oldest} -DOUT=${packed} -DGZIP=${gpu_gzip}
          -P ${CMAKE_SOURCE_DIR}/src/device/gpu/kernels/pack.cmake)
      if(NOT oldest)
        set(oldest ${ptx})
      endif()
      set(ptx ${packed})
      list(APPEND gpu_ptx ${ptx})
      string(APPEND gpu_table "extern const uint8_t device_gpu_${module}_${sm}[], device_gpu_${module}_${sm}_end[];\n")
      string(APPEND gpu_rows "    {\"${module}\", ${sm}, false, device_gpu_${module}_${sm}, device_gpu_${module}_${sm}_end},\n")
      string(APPEND gpu_data "    .globl device_gpu_${module}_${sm}\n    .hidden device_gpu_${module}_${sm}\n"
        "device_gpu_${module}_${sm}:\n    .incbin \"${ptx}\"\n${gpu_zero}"
        "    .globl device_gpu_${module}_${sm}_end\n    .hidden device_gpu_${module}_${sm}_end\n"
        "device_gpu_${module}_${sm}_end:\n")
    endforeach()
  endforeach()
endif()
string(APPEND gpu_table "const struct device_gpu_code device_gpu_codes[] = {\n${gpu_rows}    {0, 0, false, 0, 0},\n};\n")
string(APPEND gpu_data "    .section .note.GNU-stack, \"\", %progbits\n")
file(GENERATE OUTPUT ${gpu_codes} CONTENT "${gpu_table}")
target_sources(device PRIVATE ${gpu_codes})
if(gpu_ptx AND ZLIB_FOUND)
  target_link_libraries(lm PUBLIC PkgConfig::ZLIB)
  target_compile_definitions(device PRIVATE INGLE_ZLIB)
  set(INGLE_PC_ZLIB " zlib")
endif()
if(gpu_ptx)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/gpu/gpu_data.S CONTENT "${gpu_data}")
  set_source_files_properties(${CMAKE_BINARY_DIR}/gpu/gpu_data.S PROPERTIES OBJECT_DEPENDS "${gpu_ptx}")
  target_sources(device PRIVATE ${CMAKE_BINARY_DIR}/gpu/gpu_data.S)
endif()
