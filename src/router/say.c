/* SPDX-License-Identifier: Apache-2.0
 *
 * What other files of the router ask of its thread: to wake up, to watch a descriptor, to report.
 */
#define _GNU_SOURCE
#include "router/inner.h"

#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

void router_wake(struct router *r)
{
    const uint64_t one = 1;
    (void)!write(r->wake, &one, sizeof one);
}

bool router_watch(struct router *r, int fd, int what, uint32_t number)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = router_event(what, number)};
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

void router_say(struct router *r, const struct router_model *m, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!r->o.callbacks.report)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->o.callbacks.report(r->o.callbacks.arg, INGLE_REPORT_NOTE, "model", m->id, text);
}
