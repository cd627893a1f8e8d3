# The device on emulated cards.  Included by tests/gpu/CMakeLists.txt.

# The command line with emulated cards, for tests: no part of the product.
add_executable(ingle-emu tests/gpu/api_emu.c $<TARGET_OBJECTS:cli> $<TARGET_OBJECTS:tool> $<TARGET_OBJECTS:http> $<TARGET_OBJECTS:server> $<TARGET_OBJECTS:hub> $<TARGET_OBJECTS:router>)
target_link_libraries(ingle-emu PRIVATE gpu_emu lm PkgConfig::EDIT PkgConfig::MICROHTTPD PkgConfig::CURL)

ingle_gpu_test(gpu_models tests/gpu/models.c tests/golden/golden.c tests/gpu/api_emu.c)
ingle_gpu_test(gpu_streams tests/gpu/streams.c tests/gpu/api_emu.c)
