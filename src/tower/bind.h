/*
 * bind - inside the room: tensors find their names.
 */
#ifndef INGLE_TOWER_BIND_H
#define INGLE_TOWER_BIND_H

#include "tower/inner.h"

/* ---- binding ---- */

struct binder {
    struct tower *t;
    struct model *m;
    const char *prefix; /* "v", "a" */
    int64_t il;         /* of a layer; -1: none */
    ingle_status s;     /* the first error; later calls do nothing */
    struct err *err;
};

const struct device_matrix *tower_matrix(struct binder *b, const char *name, int64_t out,
                                         int64_t in);
const struct device_vector *tower_vector(struct binder *b, const char *name, int64_t n);
void tower_linear(struct binder *b, const char *name, int64_t out, int64_t in, struct linear *l);
bool tower_has(const struct binder *b, const char *name);
/* f32 [n], which the caller frees; NULL after an error. */
float *tower_floats(struct binder *b, const char *name, int64_t n);
float *tower_floats_2d(struct binder *b, const char *name, int64_t width, int64_t rows);
void tower_places(struct binder *b, int64_t d, struct places *out);
/* "clip.vision.block_count" within limits. */
void tower_key(struct binder *b, const char *key, uint64_t least, uint64_t most, int64_t *out);

/* Whether its kinds are those of one size of Gemma 4, and those of the host. */
MUST_CHECK ingle_status tower_match_kinds(const struct tower *t, const struct tower_options *o,
                                          struct err *err);
/* The same from its tensors. */
MUST_CHECK ingle_status tower_match_tensors(const struct tower *t, const struct tower_options *o,
                                            struct err *err);
const char *tower_vision_name(enum tower_vision vision_kind);
const char *tower_audio_name(enum tower_audio audio_kind);

void tower_bind_vision(struct binder *b, struct vision *v);
void tower_bind_patches(struct binder *b, struct patches *v);
void tower_bind_conformer(struct binder *b, struct conformer *c);
void tower_release_vision(struct vision *v);
void tower_release_conformer(struct conformer *c);

#endif
