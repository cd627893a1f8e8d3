/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that a model writes, on a terminal: lines end at blanks, not in the middle of words.  What
 * comes is shown at once; when a word meets the edge it alone is taken off the screen and written
 * again on the next line.  The last column stays empty: a cursor that waits there for the next
 * character is not where it seems to be.
 */
#define _DEFAULT_SOURCE
#include "cli/cli.h"
#include "cli/wrap.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

enum { TAB = 8, JOINER = 0x200D, EMOJI_STYLE = 0xFE0F, FENCE = 3, NARROWEST = 8 };

void cli_wrap_init(struct cli_wrap *w, FILE *to)
{
    const char *term = getenv("TERM");
    *w = (struct cli_wrap){
        .to = to, .terminal = isatty(fileno(to)) && term && *term && strcmp(term, "dumb") != 0};
}

/* A screen that changes moves what stands on it; the word at the cursor cannot be moved any
 * more. */
static void check_width(struct cli_wrap *w)
{
    struct winsize size;
    const int width = ioctl(fileno(w->to), TIOCGWINSZ, &size) ? 0 : size.ws_col;
    if (width == w->width)
        return;
    if (w->width && width)
        w->column %= width;
    w->stuck = w->column > 0;
    w->width = width;
}

static void new_word(struct cli_wrap *w)
{
    w->n_word = 0;
    w->word_width = 0;
    w->stuck = false;
}

static void new_line(struct cli_wrap *w)
{
    new_word(w);
    w->column = 0;
    w->blank_waits = false;
}

void cli_wrap_new(struct cli_wrap *w)
{
    new_line(w);
    w->in_code = w->fence_only = w->fence_ended = w->line_began = false;
    w->fence = w->line_fence = 0;
    w->last = 0;
}

/* ---- blocks of code: lines between fences ---- */

/* At the end of a line. */
static void end_fence(struct cli_wrap *w)
{
    if (!w->in_code && w->line_fence >= FENCE) {
        w->in_code = true;
        w->fence = w->line_fence;
        w->fence_char = w->line_char;
    } else if (w->in_code && w->line_char == w->fence_char && w->line_fence >= w->fence &&
               w->fence_only) {
        w->in_code = false;
    }
    w->line_fence = 0;
    w->line_began = w->fence_ended = false;
}

static void find_fence(struct cli_wrap *w, uint32_t c)
{
    const bool mark = c == '`' || c == '~';
    if (!w->line_began) {
        if (c == ' ' || c == '\t')
            return;
        w->line_began = true;
        w->line_char = mark ? (char)c : 0;
        w->line_fence = mark;
        w->fence_only = mark;
        w->fence_ended = !mark;
    } else if (!w->fence_ended && c == (uint32_t)w->line_char) {
        w->line_fence++;
    } else {
        w->fence_ended = true;
        if (c != ' ' && c != '\t')
            w->fence_only = false;
        if (c == '`' && w->line_char == '`' && !w->in_code)
            w->line_fence = 0; /* code within a line */
    }
}

/* ---- words ---- */

static bool is_hangul(uint32_t c)
{
    return (c >= 0x1100 && c <= 0x11FF) || (c >= 0x3130 && c <= 0x318F) ||
           (c >= 0xAC00 && c <= 0xD7FF);
}

static int width_of(uint32_t c, uint32_t last)
{
    if (c == EMOJI_STYLE) /* makes a narrow sign wide */
        return utf8proc_charwidth((utf8proc_int32_t)last) == 1;
    if (c >= 0x1160 && c <= 0x11FF) /* vowels and ends that join a syllable */
        return 0;
    return utf8proc_charwidth((utf8proc_int32_t)c);
}

/* Whether a line may end between two characters without a blank between them: around those of
 * scripts without blanks. */
static bool may_break(uint32_t before, uint32_t after, int after_width)
{
    static const uint32_t opens[] = {'(',    '[',    '{',    '"',    '\'',   0x2018, 0x201C,
                                     0x3008, 0x300A, 0x300C, 0x300E, 0x3010, 0xFF08};
    if (!before || before == JOINER || after_width == 0 ||
        (after >= 0x1F3FB && after <= 0x1F3FF) /* skin tones */)
        return false;
    const bool wide_before =
        utf8proc_charwidth((utf8proc_int32_t)before) == 2 && !is_hangul(before);
    const bool wide_after = after_width == 2 && !is_hangul(after);
    if (!wide_before && !wide_after)
        return false;
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++)
        if (before == opens[i])
            return false;
    switch (utf8proc_category((utf8proc_int32_t)after)) {
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_PD:
        return false; /* no line begins with the end of a sentence */
    default:
        return true;
    }
}

/* Where the cursor stands after a character that the terminal itself breaks lines around. */
static void advance(struct cli_wrap *w, int width)
{
    w->column = w->column + width > w->width ? width : w->column + width;
}

static void put_blank(struct cli_wrap *w, const char *text, uint32_t c)
{
    const int width = c == '\t' ? TAB - w->column % TAB : 1;
    new_word(w);
    if (w->column + width > w->width - 1) {
        w->blank_waits = true; /* the line ends here, unless it ended anyway */
        return;
    }
    fputs(text, w->to);
    w->column += width;
}

/* The word at the cursor goes to the next line with what follows. */
static void move_word(struct cli_wrap *w)
{
    if (w->word_width)
        fprintf(w->to, "\033[%dD\033[K", w->word_width);
    putc('\n', w->to);
    fwrite(w->word, 1, w->n_word, w->to);
    w->column = w->word_width;
}

static void put_letter(struct cli_wrap *w, const char *text, uint32_t c)
{
    const int width = width_of(c, w->last);
    const size_t n = strlen(text);
    if (w->blank_waits) {
        putc('\n', w->to);
        new_line(w);
    } else if (may_break(w->last, c, width)) {
        new_word(w);
    }
    if (n > sizeof w->word - w->n_word)
        w->stuck = true;
    if (!w->stuck && w->column + width > w->width - 1) {
        if (w->word_width < w->column)
            move_word(w);
        else
            w->stuck = true; /* longer than a line: it ends where it must */
    }
    fputs(text, w->to);
    if (w->stuck) {
        advance(w, width);
        return;
    }
    memcpy(w->word + w->n_word, text, n);
    w->n_word += n;
    w->word_width += width;
    w->column += width;
}

static void put_one(struct cli_wrap *w, const char *text, uint32_t c)
{
    if (c == '\n') {
        putc('\n', w->to);
        end_fence(w);
        new_line(w);
    } else {
        find_fence(w, c);
        if (w->in_code || (w->line_fence >= FENCE && w->fence_only)) {
            w->stuck = true; /* as it is: the terminal breaks it */
            fputs(text, w->to);
            if (c == '\t')
                w->column += w->column < w->width ? TAB - w->column % TAB : 0;
            else
                advance(w, width_of(c, w->last));
        } else if (c == ' ' || c == '\t') {
            put_blank(w, text, c);
        } else {
            put_letter(w, text, c);
        }
    }
    w->last = c == '\n' || c == ' ' || c == '\t' ? 0 : c;
}

void cli_wrap_put(struct cli_wrap *w, const char *text, size_t n)
{
    if (w->terminal)
        check_width(w);
    if (!w->terminal || w->width < NARROWEST) {
        cli_put_text(w->to, text, n);
        return;
    }
    for (size_t i = 0; i < n;) {
        char one[UTF8_SHOWN];
        i += utf8_show_one(text + i, n - i, UTF8_TEXT, one);
        for (size_t k = 0, len = strlen(one); k < len;) { /* an escape is several characters */
            char single[5] = {0};
            uint32_t c;
            const size_t bytes = utf8_decode(one + k, len - k, &c);
            memcpy(single, one + k, bytes);
            put_one(w, single, c);
            k += bytes;
        }
    }
}
