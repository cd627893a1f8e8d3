/*
 * inner - what the files of this room share, and the reply of the child process.
 */
#ifndef INGLE_MEDIA_INNER_H
#define INGLE_MEDIA_INNER_H

#include "media/media.h"

/* The request to a child: this, then the bytes of the file. */
struct media_request {
    uint32_t magic, n_seconds, trial, zero;
    uint64_t n_bytes;
};
/* Its reply: this, then n_bytes of RGB, of samples (f32), or of the text of an error. */
struct media_reply {
    uint32_t magic;
    uint32_t status; /* ingle_status */
    uint32_t width, height;
    uint64_t n_bytes;
};
enum { MEDIA_MAGIC = 0x69316D64, MEDIA_MAX_TEXT = 400 };
_Static_assert(sizeof(struct media_request) == 24, "layout");
_Static_assert(sizeof(struct media_reply) == 24, "layout");

enum {
    MEDIA_CHILD_BYTES = 1 << 30, /* of address space */
    MEDIA_CHILD_SECONDS = 10,    /* of processor time */
    MEDIA_CHILD_WAIT = 120,      /* seconds by the clock, on a busy machine */
    MEDIA_CHILD_FILES = 8        /* open files */
};

/* Tests have the child do what hostile bytes would make a library do. */
enum {
    MEDIA_TRIAL_NONE,
    MEDIA_TRIAL_CRASH, /* writes to an address that it does not have */
    MEDIA_TRIAL_WORK,  /* computes for ever */
    MEDIA_TRIAL_GROW,
    MEDIA_TRIAL_OPEN, /* opens a file */
    MEDIA_TRIAL_CODE, /* asks for memory that it may execute */
    MEDIA_TRIAL_WAIT, /* for bytes that do not come */
    MEDIA_TRIAL_LIE,  /* announces more pixels than it sends */
    MEDIA_TRIAL_SAY,  /* writes to the host's terminal, then as without a trial */
    MEDIA_TRIAL_CALL  /* a system call without arguments: its number stands above 16 bits */
};
/* For tests: every later file is decoded with this trial and these limits (seconds). */
void media_decoder_try(struct media_decoder *d, uint32_t trial, uint32_t n_seconds,
                       uint32_t n_wait);

#endif
