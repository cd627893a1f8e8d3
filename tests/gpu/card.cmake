# The device on emulated cards.  Included by tests/gpu/CMakeLists.txt.

# The command line with emulated cards, for tests: no part of the product.
add_executable(ingle-emu tests/gpu/api_emu.c $<TARGET_OBJECTS:cli> $<TARGET_OBJECTS:tool> $<TARGET_OBJECTS:http> $<TARGET_OBJECTS:server> $<TARGET_OBJECTS:hub> $<TARGET_OBJECTS:router>)
target_link_libraries(ingle-emu PRIVATE gpu_emu lm PkgConfig::EDIT PkgConfig::MICROHTTPD PkgConfig::CURL)

ingle_gpu_test(gpu_models tests/gpu/models.c tests/golden/golden.c tests/gpu/api_emu.c)
ingle_gpu_test(gpu_streams tests/gpu/streams.c tests/gpu/api_emu.c)

# Kernels beside the processor: with the real driver for scripts/gpu_card.py, and with emulated cards.
add_executable(gpu_card_check EXCLUDE_FROM_ALL tests/gpu/card_check.c)
target_link_libraries(gpu_card_check PRIVATE lm)
add_executable(gpu_card_check_emu tests/gpu/card_check.c tests/gpu/api_emu.c)
target_link_libraries(gpu_card_check_emu PRIVATE gpu_emu)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND NOT INGLE_FUZZ)
  add_test(NAME gpu_card COMMAND ${Python3_EXECUTABLE} scripts/gpu_card.py ${CMAKE_BINARY_DIR} --program gpu_card_check_emu
    --ingle ingle-emu --small --no-sanitizer WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_property(TEST gpu_card PROPERTY LABELS gpu)
endif()
