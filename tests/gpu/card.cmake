# The device on emulated cards.  Included by tests/gpu/CMakeLists.txt.

# The command line with emulated cards, for tests: no part of the product.
add_executable(ingle-emu tests/gpu/api_emu.c $<TARGET_OBJECTS:cli> $<TARGET_OBJECTS:tool> $<TARGET_OBJECTS:http> $<TARGET_OBJECTS:server> $<TARGET_OBJECTS:hub> $<TARGET_OBJECTS:router>)
target_link_libraries(ingle-emu PRIVATE gpu_emu lm PkgConfig::EDIT PkgConfig::MICROHTTPD PkgConfig::CURL)

ingle_gpu_test(gpu_models tests/gpu/models.c tests/golden/golden.c tests/gpu/api_emu.c)
ingle_gpu_test(gpu_streams tests/gpu/streams.c tests/gpu/api_emu.c)
ingle_gpu_test(gpu_divided tests/gpu/divided.c tests/gpu/api_emu.c)
ingle_gpu_test(gpu_schedules tests/gpu/schedules.c tests/gpu/random_card.c tests/golden/golden.c tests/gpu/api_emu.c)
target_link_libraries(gpu_schedules PRIVATE lzma)

# Programs of tests/golden whose devices have random cards; ./test soak runs all, ./test those that are tests here.
set(gpu_goldens)
foreach(t paged select shorten shorten_ways gemma4 stored deepseek4 deepseek4_dspark gemma4_mtp mtp_files deepseek4_mtp nano_v4
    dflash dflash_files nano_drafters session_draft media_prompts one_arithmetic)
  get_target_property(sources golden_${t} SOURCES)
  add_executable(gpu_golden_${t} EXCLUDE_FROM_ALL ${sources} tests/gpu/random_card.c tests/gpu/api_emu.c)
  target_link_libraries(gpu_golden_${t} PRIVATE gpu_emu lm PkgConfig::CMOCKA lzma)
  target_include_directories(gpu_golden_${t} PRIVATE tests)
  target_compile_definitions(gpu_golden_${t} PRIVATE GOLDEN_ON_CARD)
  list(APPEND gpu_goldens gpu_golden_${t})
endforeach()
add_custom_target(gpu_goldens DEPENDS ${gpu_goldens})

# Kernels beside the processor: with the real driver for scripts/gpu_card.py, and with emulated cards.
add_executable(gpu_card_check EXCLUDE_FROM_ALL tests/gpu/card_check.c)
target_link_libraries(gpu_card_check PRIVATE lm)
add_executable(gpu_card_check_emu tests/gpu/card_check.c tests/gpu/api_emu.c)
target_link_libraries(gpu_card_check_emu PRIVATE gpu_emu)
# With sanitizers gpu_models and gpu_streams run the same device.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND NOT INGLE_FUZZ AND NOT INGLE_SANITIZE)
  add_test(NAME gpu_card COMMAND ${Python3_EXECUTABLE} scripts/gpu_card.py ${CMAKE_BINARY_DIR} --program gpu_card_check_emu
    --ingle ingle-emu --small --no-sanitizer WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_property(TEST gpu_card PROPERTY LABELS gpu)
endif()

# A driver's library on the emulator, which the product itself runs on.
foreach(kind fake lacks)
  add_library(gpu_${kind} SHARED tests/gpu/fake_cuda.c)
  target_link_libraries(gpu_${kind} PRIVATE gpu_emu)
  target_compile_options(gpu_${kind} PRIVATE -Wno-missing-prototypes)
  set_target_properties(gpu_${kind} PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY fake_cuda)
endforeach()
target_compile_definitions(gpu_lacks PRIVATE FAKE_LACKS)
set_target_properties(gpu_lacks PROPERTIES LIBRARY_OUTPUT_DIRECTORY fake_cuda/lacks)
if(Python3_Interpreter_FOUND AND NOT INGLE_FUZZ AND NOT INGLE_SANITIZE)
  add_test(NAME gpu_command COMMAND ${Python3_EXECUTABLE} tests/gpu/command.py $<TARGET_FILE:ingle> $<TARGET_FILE:ingle-emu>
           ${CMAKE_BINARY_DIR}/fake_cuda WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(gpu_command PROPERTIES TIMEOUT 600 LABELS cli)
endif()
