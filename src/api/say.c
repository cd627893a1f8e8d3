/* SPDX-License-Identifier: Apache-2.0 */
/* say - names and errors in the words of the public interface. */
#include "api/api.h"

#include <stdio.h>

ingle_status engine_say(struct ingle_error *to, ingle_status st, const struct err *from)
{
    if (st && to) {
        to->status = st;
        snprintf(to->text, sizeof to->text, "%s", from->msg);
    }
    return st;
}

const char *ingle_version(void)
{
    return INGLE_VERSION;
}

const char *ingle_status_text(ingle_status s)
{
    static const char *const text[] = {
#define X(name, words) words,
        INGLE_STATUS_MAP(X)
#undef X
    };
    return (size_t)s < sizeof text / sizeof *text ? text[s] : "an unknown status";
}

const char *engine_medium_kind(enum ingle_media_kind k)
{
    return k == INGLE_MEDIA_AUDIO ? "sound" : "picture";
}
