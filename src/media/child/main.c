/* SPDX-License-Identifier: Apache-2.0 */
/* One request from the socket that is standard input, one reply to it, the end. */
#define _GNU_SOURCE
#include "media/child/child.h"

#include "base/mem.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool get(void *to, size_t n)
{
    uint8_t *p = to;
    while (n) {
        const ssize_t got = read(0, p, n);
        if (got <= 0)
            return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

static bool put(const void *from, size_t n)
{
    const uint8_t *p = from;
    while (n) {
        const ssize_t done = write(0, p, n);
        if (done <= 0)
            return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

static bool reply(const struct media_reply *r, const void *bytes)
{
    return put(r, sizeof *r) && put(bytes, (size_t)r->n_bytes);
}

static bool refuse(ingle_status s, const struct err *err)
{
    const struct media_reply r = {MEDIA_MAGIC, (uint32_t)s, 0, 0, strlen(err->msg)};
    return reply(&r, err->msg);
}

static bool give(const struct media_data *d)
{
    struct media_reply r = {MEDIA_MAGIC, INGLE_OK, 0, 0, d->sound.n * sizeof(float)};
    if (!media_is_picture(d->kind))
        return reply(&r, d->sound.samples);
    r.width = (uint32_t)d->picture.width;
    r.height = (uint32_t)d->picture.height;
    r.n_bytes = (uint64_t)r.width * r.height * 3;
    return reply(&r, d->picture.rgb);
}

static bool serve(void)
{
    struct media_request q;
    struct media_data d = {0};
    struct err err = {0};
    if (!get(&q, sizeof q) || q.magic != MEDIA_MAGIC || q.n_bytes > MEDIA_MAX_SOUND_BYTES)
        return false;
    uint8_t *at = mem_alloc((size_t)q.n_bytes); /* the allocator is ready before the filter */
    ingle_status s = at ? media_child_confine(q.n_seconds, &err)
                        : err_set(&err, INGLE_NOMEM, "no memory for a file");
    if (s != INGLE_OK)
        return refuse(s, &err);
    if (!get(at, (size_t)q.n_bytes))
        return false;
    media_child_trial(q.trial);
    s = media_child_decode(at, (size_t)q.n_bytes, &d, &err);
    return s == INGLE_OK ? give(&d) : refuse(s, &err);
}

int main(void)
{
    /* what the host left open, its terminal as well; sanitizers write there */
    (void)syscall(SYS_close_range, MEDIA_SANITIZED ? 3U : 1U, ~0U, 0U);
    _exit(serve() ? 0 : 1);
}
