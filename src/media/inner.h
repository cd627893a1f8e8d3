/*
 * inner - what the files of this room share, and the reply of the child process.
 */
#ifndef INGLE_MEDIA_INNER_H
#define INGLE_MEDIA_INNER_H

#include "media/media.h"

/* The request to a child: this, then the bytes of the file. */
struct media_request {
    uint32_t magic;
    uint32_t kind; /* enum media_kind */
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
_Static_assert(sizeof(struct media_request) == 16, "layout");
_Static_assert(sizeof(struct media_reply) == 24, "layout");

enum {
    MEDIA_CHILD_BYTES = 1 << 30, /* of address space */
    MEDIA_CHILD_SECONDS = 10,    /* of processor time */
    MEDIA_CHILD_WAIT = 120,      /* seconds by the clock, on a busy machine */
    MEDIA_CHILD_FILES = 8        /* open files */
};

#endif
