/*
 * child - the program that decodes one file and ends.
 *
 * The library has the program in its data and runs it for each file (../decoder.c).  The libraries
 * of formats are linked to this program only.  Errors begin with the format; the caller's process
 * puts the name of the part in front.  Sizes of a header are checked before memory for pixels is
 * allocated.
 */
#ifndef INGLE_MEDIA_CHILD_H
#define INGLE_MEDIA_CHILD_H

#include "media/inner.h"

/* The run time of sanitizers maps terabytes and asks for more of the system. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEDIA_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MEDIA_SANITIZED 1
#endif
#endif
#ifndef MEDIA_SANITIZED
#define MEDIA_SANITIZED 0
#endif

/* Any of the formats: the bytes say which.  On success the caller releases *out. */
MUST_CHECK ingle_status media_child_decode(const uint8_t *at, size_t n, struct media_data *out,
                                           struct err *err);

/* One format each.  *orientation is that of EXIF, 1 to 8; *out is not turned yet. */
MUST_CHECK ingle_status media_child_jpeg(const uint8_t *at, size_t n, struct media_picture *out,
                                         int *orientation, struct err *err);
MUST_CHECK ingle_status media_child_png(const uint8_t *at, size_t n, struct media_picture *out,
                                        int *orientation, struct err *err);
MUST_CHECK ingle_status media_child_webp(const uint8_t *at, size_t n, struct media_picture *out,
                                         int *orientation, struct err *err);
MUST_CHECK ingle_status media_child_gif(const uint8_t *at, size_t n, struct media_picture *out,
                                        struct err *err);
MUST_CHECK ingle_status media_child_wav(const uint8_t *at, size_t n, struct media_sound *out,
                                        struct err *err);

/* The orientation in an EXIF block (with "Exif\0\0" or without), 1 if it has none or is broken. */
int media_child_orientation(const uint8_t *at, size_t n);
/* Turns and mirrors p so that it is upright. */
MUST_CHECK ingle_status media_child_turn(struct media_picture *p, int orientation, struct err *err);
/* u8 [n][4] (RGBA) to u8 [n][3] on white, in place. */
void media_child_on_white(uint8_t *at, size_t n);
/* owns: u8 [h][w][n_channels] of a size that has been checked */
MUST_CHECK ingle_status media_child_pixels(uint8_t **out, int64_t w, int64_t h, int n_channels,
                                           const char *format, struct err *err);

/* How many samples of 16 kHz n samples of another rate become. */
size_t media_child_resampled(size_t n, uint32_t rate);
/* in: f32 [n] of `rate`; out: f32 [media_child_resampled(n, rate)].  Band-limited. */
MUST_CHECK ingle_status media_child_resample(const float *in, size_t n, uint32_t rate, float *out,
                                             struct err *err);

/* What hostile bytes would make a library do; only tests ask for it (inner.h). */
void media_child_trial(uint32_t kind);
/* No file, no connection and no signal to others from here on; nothing where the kernel has no
 * Landlock.  The process cannot get new privileges. */
MUST_CHECK ingle_status media_child_landlock(struct err *err);
/* Limits, Landlock, then the filter: reads and writes of open files and memory are all that is
 * left. */
MUST_CHECK ingle_status media_child_confine(uint32_t n_seconds, struct err *err);

#endif
