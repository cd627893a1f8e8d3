/*
 * tower - pictures and sound as soft tokens: the encoders of Gemma 4.
 *
 * A picture that fits (media_fit()) becomes one row of the language model's width for each block of
 * `side` x `side` pixels, row by row; sound becomes 25 rows a second.  The encoders of a model are
 * in an "mmproj" GGUF file, in its checkpoint, or in its own GGUF file under names with "v." and
 * "a.".
 *
 * A row's bits depend on the picture, the weights and the device's numerics: not on threads, nor
 * on the tiles of rows in which layers are computed.  Activations are f32.  Memory: the stream,
 * keys and values of a picture, and a tile of rows of the rest; never a square of the number of
 * patches.
 *
 * One thread at a time may use a tower, and its device.
 */
#ifndef INGLE_TOWER_TOWER_H
#define INGLE_TOWER_TOWER_H

#include "base/err.h"
#include "base/report.h"
#include "device/device.h"
#include "io/io.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tower;

/* The language model that the encoders are for. */
struct tower_host {
    const char *size; /* "12B"; "": a size that is not known */
    bool per_layer;   /* it has per-layer inputs, as E2B and E4B */
    bool experts;
};

struct tower_options {
    struct device *device;          /* borrowed until tower_close() */
    int64_t width;                  /* of the language model, as the file must have it; 0: any */
    const char *model;              /* path of the language model, for errors; may be NULL */
    const struct tower_host *host;  /* which encoders it may have; NULL: any; for the call */
    int64_t most_tokens;            /* of a picture; 0: 1120 */
    const struct report_sink *sink; /* borrowed until tower_close() */
    int64_t tile; /* rows that are computed together; 0: 512.  Results do not depend on it */
    bool check; /* names and shapes are checked, nothing is loaded: it cannot run */
};

/* Where the encoders of the model at `model` (a GGUF file, or the folder of a checkpoint) are: the
 * single *mmproj*.gguf beside it, or the file or folder itself.  The caller frees *path.
 * INGLE_NOTFOUND: it has none.  Several files: an error that lists them. */
MUST_CHECK ingle_status tower_find(const char *model, char **path, struct err *err);
/* Whether tensors of an encoder are in that file. */
bool tower_is_in(const struct io_file *file);

/* path: an mmproj file, a checkpoint, or a model's GGUF file.  Refused: another projector type, a
 * width that is not the language model's, encoders that no model of its kind has, a missing tensor,
 * a layer too many, a wrong shape or type, a file that is cut short; the error names file, tensor
 * or key, value and limit. */
MUST_CHECK ingle_status tower_open(struct tower **out, const char *path,
                                   const struct tower_options *o, struct err *err);
/* The same from a file that is open already, which is borrowed until tower_close(). */
MUST_CHECK ingle_status tower_open_file(struct tower **out, struct io_file *file,
                                        const struct tower_options *o, struct err *err);
void tower_close(struct tower *t);

struct tower_info {
    bool pictures, sound;
    const char *picture_kind; /* "gemma4v", "gemma4uv" (no encoder); NULL */
    const char *sound_kind;   /* "gemma4a", "gemma4ua" (no encoder); NULL */
    const char *path;
    int64_t width;            /* of a soft token: the language model's */
    int side;                 /* pixels of a soft token's block, across and down: 48 */
    int64_t most_blocks;      /* of a picture, across or down: the table of positions has no more */
    int64_t budget;           /* soft tokens of a picture, if nobody says otherwise: 280 */
    uint64_t weight_bytes;    /* in memory */
    uint64_t table_bytes;     /* of positions: they stay in the file */
    size_t scratch_bytes;     /* of the device's arena, for the largest picture or sound */
};
void tower_info(const struct tower *t, struct tower_info *out);
/* Identity of the encoders: of all their weights, and of the numerics of the device.  Of the same
 * picture, two towers with the same digest give the same bits. */
enum { TOWER_DIGEST = 32 };
const uint8_t *tower_digest(const struct tower *t);

/* The device's arena becomes larger by what the tower needs, so that steps of the language model
 * may run while it waits.  After the language model has reserved its own part; no step runs. */
MUST_CHECK ingle_status tower_reserve(struct tower *t, struct err *err);

/* Runs between tiles of rows and between layers; done: 0 to 1.  The device is suspended meanwhile:
 * other steps may run on it.  Nonzero: the rest is not computed, INGLE_CANCEL. */
typedef int tower_step_fn(void *arg, double done);

struct tower_run {
    tower_step_fn *step; /* or NULL */
    void *arg;
    const atomic_bool *cancel; /* or NULL; polled between operations */
    /* or NULL: device_set_between(), so that others may also run within an operation */
    struct device_between *between;
};

/* rgb: [height][width][3], sides multiples of info.side.  soft: f32 [n][info.width], n =
 * tower_picture_tokens().  INGLE_ARG: the sides do not fit; INGLE_UNSUP: none for pictures. */
int64_t tower_picture_tokens(const struct tower *t, int width, int height);
MUST_CHECK ingle_status tower_picture(struct tower *t, const unsigned char *rgb, int width,
                                      int height, float *soft, const struct tower_run *run,
                                      struct err *err);

/* samples: 16 kHz, one channel; n at most 30 s.  soft: f32 [n_tokens][info.width], n_tokens =
 * tower_sound_tokens(), 0: too short, which is an error. */
enum { TOWER_RATE = 16000, TOWER_MOST_SAMPLES = 30 * TOWER_RATE };
int64_t tower_sound_tokens(const struct tower *t, int64_t n);
MUST_CHECK ingle_status tower_sound(struct tower *t, const float *samples, int64_t n, float *soft,
                                    const struct tower_run *run, struct err *err);

/* Stages of a run, for tests and `inspect`: called with rows of the device, in the order of the
 * computation.  name: "embed", "layer0.attn_out", "layer0", "pooled", "features", "soft", ...; row:
 * number of rows.at's first row in the whole stage.  NULL: nobody looks. */
typedef void tower_tap_fn(void *arg, const char *name, int64_t row, struct rows rows);
void tower_tap(struct tower *t, tower_tap_fn *fn, void *arg);

/* One line: "pictures (gemma4v, 27 layers, blocks of 48 x 48 pixels, ...), sound (...), ..." */
struct str;
void tower_describe(const struct tower *t, struct str *out);

/* config.json of a checkpoint, and its processor_config.json (or NULL), as keys of an mmproj
 * file.  path: for errors. */
struct json_object;
MUST_CHECK ingle_status tower_config(struct json_object *config, struct json_object *processor,
                                     struct io_meta *out, const char *path, struct err *err);
/* A checkpoint's name of a tensor as an mmproj file has it; false: of no encoder. */
bool tower_rename(const char *name, char *out, size_t n_out);
/* Whether a tensor of an mmproj file is a matrix that may have a narrower type: F16, BF16 or Q8_0;
 * others are F32. */
bool tower_is_matrix(const struct io_tensor *t);

/* Multiplications and additions of products and attention of n tokens. */
double tower_picture_work(const struct tower *t, int64_t n);
double tower_sound_work(const struct tower *t, int64_t n);

#endif
