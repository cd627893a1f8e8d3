/* SPDX-License-Identifier: Apache-2.0 */
/* none - ends of a build without libcrypto: there are none. */
#include "link/link.h"

bool link_is_built(void)
{
    return false;
}

static ingle_status refuse(struct err *err)
{
    return err_set(
        err, INGLE_UNSUP,
        "this build has no workers: it was made without libcrypto (Debian: libssl-dev)");
}

ingle_status link_listen(struct link **out, const struct link_options *o, struct err *err)
{
    (void)out;
    (void)o;
    return refuse(err);
}

ingle_status link_dial(struct link **out, const struct link_options *o, struct err *err)
{
    (void)out;
    (void)o;
    return refuse(err);
}

bool link_has_room(struct link *l, const struct link_peer *to)
{
    (void)l;
    (void)to;
    return false;
}

bool link_out_take(struct link *l, struct link_out *m, size_t n)
{
    (void)l;
    (void)m;
    (void)n;
    return false;
}

void link_reserve(struct link *l, size_t n, int count)
{
    (void)l;
    (void)n;
    (void)count;
}

bool link_is_up(struct link *l, const struct link_peer *to)
{
    (void)l;
    (void)to;
    return false;
}

bool link_has_sent(struct link *l, const struct link_peer *to)
{
    (void)l;
    (void)to;
    return false;
}

void link_close(struct link *l)
{
    (void)l;
}

const char *link_name(const struct link *l)
{
    (void)l;
    return "";
}

const char *link_trouble(struct link *l)
{
    (void)l;
    return NULL;
}

const char *link_cipher(struct link *l, const struct link_peer *p, const char **slow)
{
    (void)l;
    (void)p;
    *slow = NULL;
    return NULL;
}

void link_admit(struct link *l, const struct link_peer *p, uint64_t most_bytes)
{
    (void)l;
    (void)p;
    (void)most_bytes;
}

bool link_out_init(struct link_out *m, size_t n)
{
    *m = (struct link_out){.n = n};
    return false;
}

void link_out_release(struct link_out *m)
{
    m->payload = NULL;
}

bool link_send(struct link *l, const struct link_peer *to, const struct link_head *h,
               struct link_out *m)
{
    (void)l;
    (void)to;
    (void)h;
    (void)m;
    return false;
}

enum link_event link_wait(struct link *l, int timeout_ms, struct link_in *in, char *why,
                          size_t n_why)
{
    (void)l;
    (void)timeout_ms;
    (void)in;
    (void)why;
    (void)n_why;
    return LINK_NOTHING;
}

void link_in_release(struct link_in *in)
{
    (void)in;
}

void link_in_move(struct link_in *to, struct link_in *from)
{
    *to = *from;
}

void link_sleep(struct link *const *l, int n, int timeout_ms)
{
    (void)l;
    (void)n;
    (void)timeout_ms;
}
