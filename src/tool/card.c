/* SPDX-License-Identifier: Apache-2.0 */
/* Which graphics card there is. */
#include "tool/tool.h"

#include "base/report.h"
#include "device/card.h"

#include <stdio.h>
#include <string.h>

struct why {
    char *at;
    size_t n;
};

/* The device says what is missing as a fallback to the processor. */
static void keep_reason(void *arg, ingle_report_level level, const char *kind, const char *subject,
                        const char *text)
{
    static const char end[] = ": the processor computes";
    const struct why *w = arg;
    const size_t n = strlen(text), n_end = sizeof end - 1;
    const bool ends = n > n_end && strcmp(text + n - n_end, end) == 0;
    (void)level;
    (void)kind;
    if (!strcmp(subject, "gpu"))
        snprintf(w->at, w->n, "%.*s", (int)(ends ? n - n_end : n), text);
}

bool tool_card(struct tool_card *out, char *why, size_t n_why)
{
    struct why to = {why, n_why};
    const struct report_sink sink = {keep_reason, NULL, &to};
    const struct device_options o = {.n_threads = 1, .cpu = UINT32_MAX, .sink = &sink};
    struct device *d = NULL;
    struct err err;
    err.msg[0] = 0;
    why[0] = 0;
    ingle_status st = device_create(&d, &o, &err);
    if (!st)
        st = device_card_open(d, 1, 0, &err);
    const struct device_card_info *card = st ? NULL : device_card(d);
    if (card) {
        *out = (struct tool_card){.number = card->number,
                                  .driver = card->driver,
                                  .major = card->major,
                                  .minor = card->minor,
                                  .bytes = card->bytes,
                                  .free_bytes = card->free_bytes,
                                  .integrated = card->integrated};
        snprintf(out->name, sizeof out->name, "%s", card->name);
    } else if (st) {
        snprintf(why, n_why, "%s", err.msg);
    }
    device_free(d);
    return card != NULL;
}
