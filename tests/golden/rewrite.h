/* rewrite - a GGUF file as another writer has it: architecture, keys and tensors under other
 * names. */
#ifndef INGLE_TESTS_REWRITE_H
#define INGLE_TESTS_REWRITE_H

struct rewrite_name { const char *from, *to; }; /* to NULL: it is left out */

struct rewrite {
    const char *arch;                          /* NULL: as it is; else also in front of its keys */
    /* ended by a from of NULL; or NULL.  Keys without the architecture */
    const struct rewrite_name *key, *tensor;
    /* a key (its new name) whose whole numbers become one less; or NULL */
    const char *less_one;
};

void rewrite_gguf(const char *from, const char *to, const struct rewrite *r);

#endif
