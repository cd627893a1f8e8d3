/*
 * forward - inside the room: a tower's run.
 */
#ifndef INGLE_TOWER_FORWARD_H
#define INGLE_TOWER_FORWARD_H

#include "tower/inner.h"

/* A run, between tower_begin() and tower_end(). */
struct pass {
    const struct tower *t;
    struct device *d;
    const struct tower_run *run;
    int64_t done, all; /* steps */
    bool cancelled;
};

/* False: the rest is not to be computed. */
bool tower_step(struct pass *p);
void tower_see(const struct pass *p, int64_t row, struct rows rows, const char *format, ...)
    ATTR_PRINTF(4, 5);

/* ---- forward ---- */

/* y = clamp(W clamp(x)); x stays. */
void tower_apply(struct pass *p, const struct linear *l, struct rows x, struct rows y);
/* x = x + v, f32 [x.width]. */
void tower_add(struct pass *p, struct rows x, const float *v);
void tower_matmul(struct device *d, const struct device_matrix *w, struct rows x, struct rows y);
/* soft = W norm(x), without a weight. */
void tower_project(struct pass *p, const struct device_matrix *w, struct rows x, int64_t row,
                   float *soft);
/* Rows of places 0 .. n - 1 of one axis, f32 [n][d], from the arena. */
struct rows tower_place_rows(struct pass *p, const struct places *from, int axis, int64_t n);

/* rgb NULL: a dry run for n_across x n_down soft tokens. */
void tower_see_vision(struct pass *p, const struct vision *v, const unsigned char *rgb,
                      int64_t n_across, int64_t n_down, float *soft);
void tower_see_patches(struct pass *p, const struct patches *v, const unsigned char *rgb,
                       int64_t n_across, int64_t n_down, float *soft);
/* mel: f32 [n][TOWER_MELS]; NULL: a dry run. */
void tower_encode_mel(struct pass *p, const struct conformer *c, const float *mel, int64_t n,
                      float *soft);
void tower_encode_frames(struct pass *p, const struct frames *f, const float *samples, int64_t n,
                         float *soft);
/* How many steps they have. */
int64_t tower_vision_steps(const struct tower *t, int64_t n_tokens);
int64_t tower_conformer_steps(const struct conformer *c);

#endif
