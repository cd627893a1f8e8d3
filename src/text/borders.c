/* SPDX-License-Identifier: Apache-2.0 */
/*
 * borders - where the turns of a prompt meet, by its tokens alone: so a prompt that a template
 * wrote, one that came back as text or as ids, and one with drawn tokens in it have the same
 * borders.
 *
 * The special token that opens a turn, or closes the result of a tool, is a place where text is cut
 * before it becomes tokens: what stands before a border has the same tokens whatever stands after
 * it.
 */
#include "text/chat.h"

#include <assert.h>
#include <string.h>

/* LEAST: a border before that saves nothing */
enum { LEAST = 16, LAST_TURNS = 5, LAST_RESULTS = 2 };
static_assert(1 + LAST_TURNS + LAST_RESULTS == TEXT_BORDERS, "the first one, and the last ones");

static int32_t find(const struct tokenizer *t, const char *spelling)
{
    return text_find(t, spelling, strlen(spelling));
}

void text_borders_init(struct text_turns *out, enum text_chat_family family,
                       const struct tokenizer *t)
{
    *out = (struct text_turns){.open = {-1, -1, -1}, .close = -1, .system = -1};
    if (!t)
        return;
    if (family == TEXT_CHAT_GEMMA4) {
        out->open[0] = find(t, "<|turn>");
        out->close = find(t, "<tool_response|>");
        out->system = find(t, "system");
        return;
    }
    out->open[0] = find(t, "<｜User｜>");
    out->open[1] = find(t, "<｜Assistant｜>");
    out->open[2] = find(t, "<｜latest_reminder｜>");
    out->bare_system = true;
}

static bool opens(const struct text_turns *t, int32_t id)
{
    return id >= 0 && (id == t->open[0] || id == t->open[1] || id == t->open[2]);
}

/* The end of the first turn, and whether it says to the model who it is; 0: there is none. */
static int64_t first_end(const struct text_turns *t, const int32_t *ids, int64_t n, bool *system)
{
    int64_t first = 0;
    while (first < n && !opens(t, ids[first]))
        first++;
    *system =
        t->bare_system ? first > 1 : first + 1 < n && t->system >= 0 && ids[first + 1] == t->system;
    if (first >= n || (t->bare_system && *system))
        return first < n ? first : 0;
    for (int64_t i = first + 1; i < n; i++)
        if (opens(t, ids[i]))
            return i;
    return 0;
}

void text_borders_find(const struct text_turns *t, const int32_t *ids, int64_t n,
                       struct text_borders *out)
{
    bool system;
    const int64_t first = first_end(t, ids, n, &system);
    int turns = 0, results = 0, k = TEXT_BORDERS;
    int64_t at[TEXT_BORDERS];
    for (int64_t i = n - 1;
         i >= LEAST && i > first && (turns < LAST_TURNS || results < LAST_RESULTS); i--) {
        const bool result = ids[i] == t->close && t->close >= 0;
        if (result && results < LAST_RESULTS && (k == TEXT_BORDERS || at[k] > i + 1)) {
            results++;
            at[--k] = i + 1;
        }
        if (opens(t, ids[i]) && turns < LAST_TURNS) {
            turns++;
            at[--k] = i;
        }
    }
    if (first >= LEAST)
        at[--k] = first;
    *out = (struct text_borders){.n = TEXT_BORDERS - k,
                                 .system = system && first >= LEAST ? first : 0};
    memcpy(out->at, at + k, (size_t)out->n * sizeof *at);
}
