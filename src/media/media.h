/*
 * media - from the bytes of a picture's or a sound's file to prepared data.
 *
 * media_decode() finds the format in the bytes (names and declared types are never believed) and
 * has a child process decode them: a process for each file, with limits on memory, processor time
 * and system calls, so that a file can cost no more than its own request.  A picture comes back
 * upright (EXIF), on white (alpha) and as RGB of 8 bits; a sound as samples of 16 kHz, one channel.
 * media_fit() and media_resize() bring a picture to the size that its budget of soft tokens gives;
 * media_mel() makes the spectrogram of a sound.  An identity is the hash of prepared data.
 *
 * Errors begin with the name that the caller gave and have format, value and limit.  Every call is
 * safe from any thread.
 */
#ifndef INGLE_MEDIA_MEDIA_H
#define INGLE_MEDIA_MEDIA_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- limits ---- */
enum {
    MEDIA_MAX_SIDE = 20000,
    MEDIA_MAX_PIXELS = 64000000,
    MEDIA_MAX_PICTURE_BYTES = 20 << 20, /* of a picture's file */
    MEDIA_MAX_SOUND_BYTES = 25 << 20,   /* of a sound's file */
    MEDIA_MAX_SECONDS = 30,
    MEDIA_MIN_SAMPLES = 161, /* what one frame of a spectrogram needs */
    MEDIA_RATE = 16000, /* samples a second, after decoding */
    MEDIA_MAX_SAMPLES = MEDIA_MAX_SECONDS * MEDIA_RATE,
    MEDIA_MAX_PARTS = 16, /* in one request */
    MEDIA_MEL = 128,      /* bands of a spectrogram */
    MEDIA_BLOCK = 48,     /* pixels of a published model's block, a soft token, on a side */
    MEDIA_MAX_BUDGET = 1120,
    MEDIA_ID_BYTES = 32
};

/* ---- formats ---- */
enum media_kind { MEDIA_UNKNOWN, MEDIA_JPEG, MEDIA_PNG, MEDIA_WEBP, MEDIA_GIF, MEDIA_WAV };
enum { MEDIA_N_KINDS = MEDIA_WAV + 1 };

/* By the first bytes. */
enum media_kind media_sniff(const void *bytes, size_t n);
bool media_is_picture(enum media_kind kind);
const char *media_kind_name(enum media_kind kind); /* "JPEG" */
/* Whether this build decodes it, and the library that does or would: "libjpeg-turbo". */
bool media_can_decode(enum media_kind kind);
const char *media_library(enum media_kind kind);
/* The name of a known format that ingle does not read ("PDF", "HEIC"), or NULL. */
const char *media_foreign_name(const void *bytes, size_t n);

/* ---- decoding ---- */
struct media_picture {
    int width, height;
    unsigned char *rgb; /* u8 [height][width][3], owned */
};
struct media_sound {
    size_t n;
    float *samples; /* f32 [n], 16 kHz, owned */
};
/* What a file has; the other one is zero. */
struct media_data {
    enum media_kind kind;
    struct media_picture picture;
    struct media_sound sound;
};
void media_picture_release(struct media_picture *p); /* zeroed afterwards */
void media_sound_release(struct media_sound *s);
void media_data_release(struct media_data *d);

/* Starts processes; an engine has one.  At most two files are decoded at a time; further callers
 * wait for their turn. */
struct media_decoder;
MUST_CHECK ingle_status media_decoder_create(struct media_decoder **out, struct err *err);
void media_decoder_free(struct media_decoder *d);
/* Decodes n bytes.  `name` is for errors only ("message 2, part 1").  A file that is refused is
 * INGLE_ARG; INGLE_IO and INGLE_NOMEM are faults of this machine.  On success the caller
 * releases *out.  A picture of 64 megapixels takes 192 MB until then: decode, resize and release
 * one after the other. */
MUST_CHECK ingle_status media_decode(struct media_decoder *d, const void *bytes, size_t n,
                                     const char *name, struct media_data *out, struct err *err);

/* The version of the kernel's Landlock, which children have beside the filter for system calls;
 * 0: there is none. */
int media_landlock(void);
/* Whether a child can be started and decodes: a picture of one pixel. */
MUST_CHECK ingle_status media_decoder_check(struct media_decoder *d, struct err *err);

/* Whether pixels or samples that a host hands over are within the limits. */
MUST_CHECK ingle_status media_check_pixels(int64_t width, int64_t height, const char *name,
                                           struct err *err);
MUST_CHECK ingle_status media_check_samples(const float *samples, size_t n, const char *name,
                                            struct err *err);

/* ---- pictures ---- */
/* The size that a picture of w x h pixels gets: multiples of `block` whose number of blocks, the
 * result, is at most `budget`.  Small pictures are enlarged.  1 <= w, h <= MEDIA_MAX_SIDE. */
int media_fit(int w, int h, int budget, int block, int *tw, int *th);
/* 70, 140, 280, 560, 1120 */
bool media_is_budget(int64_t budget);
/* The smallest budget whose picture has no fewer pixels than w x h, else the largest. */
int media_auto_budget(int w, int h, int block);
/* Pillow's bicubic, byte for byte.  *out is the caller's, also when the size is the same. */
MUST_CHECK ingle_status media_resize(const struct media_picture *in, int tw, int th,
                                     struct media_picture *out, struct err *err);
/* media_fit() and media_resize(); *n_tok may be NULL. */
MUST_CHECK ingle_status media_prepare(const struct media_picture *in, int budget, int block,
                                      struct media_picture *out, int *n_tok, struct err *err);

/* ---- sounds ---- */
int media_mel_frames(size_t n_samples);
/* Soft tokens of a sound: of an encoder over the spectrogram, or of frames of 640 samples (a
 * model without an encoder).  0: too short. */
int media_sound_tokens(size_t n_samples, bool has_encoder);
/* mel: f32 [media_mel_frames(n)][MEDIA_MEL] */
MUST_CHECK ingle_status media_mel(const float *samples, size_t n, float *mel, struct err *err);

/* ---- identities ---- */
/* tower: the 32 bytes that identify the encoder's weights.  p is the resized picture. */
void media_picture_identity(const struct media_picture *p, int budget,
                            const uint8_t tower[MEDIA_ID_BYTES], uint8_t out[MEDIA_ID_BYTES]);
void media_sound_identity(const struct media_sound *s, const uint8_t tower[MEDIA_ID_BYTES],
                          uint8_t out[MEDIA_ID_BYTES]);

#endif
