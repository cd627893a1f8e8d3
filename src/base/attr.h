/* attr - the compiler attributes the project uses, in one place. */
#ifndef INGLE_BASE_ATTR_H
#define INGLE_BASE_ATTR_H

#define ATTR_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define MUST_CHECK __attribute__((warn_unused_result))
#define ATTR_UNUSED __attribute__((unused))
#define ATTR_INLINE inline __attribute__((always_inline))
#define ATTR_NOINLINE __attribute__((noinline))
/* Not looked at by sanitizers: for what they would make too slow to test anything with. */
#define ATTR_UNCHECKED \
    __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread")))
/* A symbol of a library that may lack it; it is NULL then. */
#define ATTR_WEAK __attribute__((weak))
#define ATTR_NORETURN __attribute__((noreturn))
#define ATTR_ALIGNED(n) __attribute__((aligned(n)))
/* A vector of n bytes: + - * / & | ~ < > == for each element. */
#define ATTR_VECTOR(n) __attribute__((vector_size(n)))
/* Elements of two vectors by their numbers, those of b after those of a. */
#define ATTR_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#endif
