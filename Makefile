# The door.  All real build knowledge is in CMakeLists.txt and CMakePresets.json.
P ?= release

all:
	@cmake --preset $(P) >out/.configure.log 2>&1 || { cat out/.configure.log; exit 1; }
	@cmake --build --preset $(P)

check: all
	@ctest --preset $(P)

asan tsan clang:
	@$(MAKE) --no-print-directory check P=$@

# Hours: all tests with every sanitizer, fuzzing, load, kills, every seed of the kernels, all of clang-tidy.
soak:
	@./test soak

lint:
	@python3 scripts/test_all.py checks clang tidy

bench:
	@$(MAKE) --no-print-directory all P=release
	@cmake --build --preset release --target bench
	out/release/bench_pool
	out/release/bench_model assets/nano-gemma4-Q8_0.gguf read decode:64 decode:64@1024 prefill:512

# What a server does under load; tests/bench/serve.py --help.
bench-serve:
	@cmake --preset release >/dev/null && cmake --build --preset release --target ingle
	@python3 tests/bench/serve.py load out/release/ingle
	@python3 tests/bench/serve.py slow out/release/ingle

# Not part of check: it wants a quiet machine.  bench_check.py --record writes the ratios.
bench-check:
	@$(MAKE) --no-print-directory all P=release
	@cmake --build --preset release --target bench_model
	@python3 scripts/bench_check.py out/release/kerncheck

clean:
	@rm -rf out

$(shell mkdir -p out)
.PHONY: all check soak asan tsan clang lint bench bench-serve bench-check clean
