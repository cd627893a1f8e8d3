/*
 * media - pictures and sounds of the goldens as vectors, and their prompts.
 */
#ifndef INGLE_TESTS_GOLDEN_MEDIA_H
#define INGLE_TESTS_GOLDEN_MEDIA_H

#include "golden/golden.h"

enum { MEDIA_MOST = 8, MEDIA_PROMPT = 1536, MEDIA_SPANS = 32 };

struct media_item {
    struct session_medium m; /* m.rows are owned */
    int refs;
    int32_t base; /* id of the first of the six media tokens */
};

/* image0, image1, audio0, audio1 of a golden (NULL: none), where it has them; then whatever a test
 * adds. */
struct media {
    struct media_item item[MEDIA_MOST];
    int n;
    int32_t base;
};

struct media_prompt {
    int32_t token[MEDIA_PROMPT];
    int64_t n;
    struct session_soft soft[MEDIA_SPANS];
    size_t n_soft;
};

void media_open(struct media *m, const char *golden, int64_t width);
/* One more, of n positions and random vectors, which `seed` names. */
struct media_item *media_add(struct media *m, int64_t n, int64_t width, uint32_t seed, bool sound);
/* Nobody may have a reference. */
void media_close(struct media *m);
/* NULL: the golden has none of the name. */
struct media_item *media_find(struct media *m, const char *name);
/* Prompt pN of the goldens; media as in its meta.json: "i1 a0". */
void media_prompt(struct media *m, const char *golden, int number, const char *of,
                  struct media_prompt *out);
/* Marker, positions, marker behind what is there; false: no room. */
bool media_put(struct media_prompt *p, struct media_item *item);

#endif
