/* unit - what every unit test includes: cmocka with the headers it wants before it. */
#ifndef INGLE_TESTS_UNIT_H
#define INGLE_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Under the thread sanitizer tests leave out trips that differ only in their numbers: it makes them 10
 * to 50 times slower, and which threads touch what shows in the first. */
#ifdef __SANITIZE_THREAD__
enum { UNIT_TSAN = 1 };
#else
enum { UNIT_TSAN = 0 };
#endif

#endif
