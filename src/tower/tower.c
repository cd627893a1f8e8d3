/* SPDX-License-Identifier: Apache-2.0 */
#include "tower/tower.h"

ingle_status tower_open(struct tower **out, const char *path, const struct tower_options *o,
                        struct err *err)
{
    (void)out, (void)o;
    return err_set(err, INGLE_UNSUP, "'%s': encoders are not read", path);
}

ingle_status tower_open_file(struct tower **out, struct io_file *file,
                             const struct tower_options *o, struct err *err)
{
    return tower_open(out, io_path(file), o, err);
}

void tower_close(struct tower *t) { (void)t; }

void tower_info(const struct tower *t, struct tower_info *out)
{
    (void)t;
    *out = (struct tower_info){0};
}

const uint8_t *tower_digest(const struct tower *t) { return (const uint8_t *)t; }

ingle_status tower_reserve(struct tower *t, struct err *err)
{
    (void)t, (void)err;
    return INGLE_OK;
}

int64_t tower_picture_tokens(const struct tower *t, int width, int height)
{
    (void)t, (void)width, (void)height;
    return 0;
}

ingle_status tower_picture(struct tower *t, const unsigned char *rgb, int width, int height,
                           float *soft, const struct tower_run *run, struct err *err)
{
    (void)t, (void)rgb, (void)width, (void)height, (void)soft, (void)run;
    return err_set(err, INGLE_UNSUP, "encoders are not read");
}

int64_t tower_sound_tokens(const struct tower *t, int64_t n)
{
    (void)t, (void)n;
    return 0;
}

ingle_status tower_sound(struct tower *t, const float *samples, int64_t n, float *soft,
                         const struct tower_run *run, struct err *err)
{
    (void)t, (void)samples, (void)n, (void)soft, (void)run;
    return err_set(err, INGLE_UNSUP, "encoders are not read");
}

void tower_tap(struct tower *t, tower_tap_fn *fn, void *arg) { (void)t, (void)fn, (void)arg; }

double tower_picture_work(const struct tower *t, int64_t n)
{
    (void)t, (void)n;
    return 0;
}

double tower_sound_work(const struct tower *t, int64_t n)
{
    (void)t, (void)n;
    return 0;
}
