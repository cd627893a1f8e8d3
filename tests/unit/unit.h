/* unit - what every unit test includes: cmocka with the headers it wants before it. */
#ifndef INGLE_TESTS_UNIT_H
#define INGLE_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

/* Writes a whole file, whatever was there; with base/output.h. */
#define unit_write(file, bytes, n, err)                                                            \
    output_save(&(struct output){.path = (file), .kind = OUTPUT_ANY}, bytes, n, err)

/* Seeds, models or prompts of a test: ./test soak takes all of them, the gate the first ones. */
static inline int unit_some(int gate, int soak)
{
    return getenv("INGLE_TEST_SOAK") ? soak : gate;
}

/* Under sanitizers tests leave out trips that differ only in their numbers: they are 5 to 50 times
 * slower there, and which threads and addresses are touched shows in the first. */
#ifdef __SANITIZE_THREAD__
enum { UNIT_TSAN = 1 };
#else
enum { UNIT_TSAN = 0 };
#endif
#ifdef __SANITIZE_ADDRESS__
enum { UNIT_ASAN = 1 };
#else
enum { UNIT_ASAN = 0 };
#endif

#endif
