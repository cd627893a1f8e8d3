/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t SECOND = 1000000000u;

/* ---- text from outside ---- */

void cli_line(const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t i = 0, n = strlen(text); i < n;) {
        char one[UTF8_SHOWN];
        i += utf8_show_one(text + i, n - i, UTF8_LINE, one);
        fputs(one, stderr);
    }
    fputc('\n', stderr);
}

const char *cli_shown(char *out, size_t n, const char *text)
{
    utf8_show(text, strlen(text), UTF8_LINE, out, n);
    return out;
}

void cli_put_text(FILE *to, const char *text, size_t n)
{
    if (!isatty(fileno(to))) {
        fwrite(text, 1, n, to);
        return;
    }
    for (size_t i = 0; i < n;) {
        char one[UTF8_SHOWN];
        i += utf8_show_one(text + i, n - i, UTF8_TEXT, one);
        fputs(one, to);
    }
}

/* ---- reports and progress ---- */

void cli_screen_init(struct cli_screen *s, const struct ingle_config *config)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    const bool quiet = ingle_config_flag(config, "quiet");
    *s = (struct cli_screen){.tenth = -1};
    pthread_mutex_init(&s->lock, NULL);
    s->terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    s->colour = s->terminal && !(no_color && *no_color);
    s->progress = !quiet;
    s->level = quiet                                  ? INGLE_REPORT_ERROR
               : ingle_config_flag(config, "verbose") ? INGLE_REPORT_DEBUG
                                                      : INGLE_REPORT_WARN;
}

/* With the lock held. */
static void clear(struct cli_screen *s)
{
    if (s->line_open)
        fputs("\r\033[K", stderr);
    s->line_open = false;
    s->job[0] = 0;
}

void cli_screen_clear(struct cli_screen *s)
{
    pthread_mutex_lock(&s->lock);
    clear(s);
    pthread_mutex_unlock(&s->lock);
}

static void on_report(void *arg, ingle_report_level level, const char *kind, const char *subject,
                      const char *text)
{
    static const char *const word[] = {"error", "warning", "note", "debug"};
    struct cli *c = arg;
    if (level > c->screen.level)
        return;
    pthread_mutex_lock(&c->screen.lock);
    clear(&c->screen);
    cli_line("ingle: %s: %s '%s': %s", word[level], kind, subject, text);
    pthread_mutex_unlock(&c->screen.lock);
}

static bool counts_bytes(const char *job)
{
    return strcmp(job, "load") == 0 || strcmp(job, "read") == 0 || strcmp(job, "write") == 0;
}

/* "load  [#####.....]  52 %, 1.80 GB/s, 3 s left" */
static void draw_bar(const struct cli_screen *s, double share, double rate, double left_s)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    const int full = (int)(share * (double)WIDTH);
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f %%", s->job, bar, share * 100);
    if (counts_bytes(s->job))
        fprintf(stderr, ", %.2f GB/s", rate * 1e-9);
    fprintf(stderr, ", %.0f s left", left_s);
    fflush(stderr);
}

/* With the lock held. */
static void show_progress(struct cli_screen *s, const char *job, double done, double total)
{
    const uint64_t now = clock_now();
    if (strncmp(s->job, job, sizeof s->job - 1) != 0) {
        clear(s);
        snprintf(s->job, sizeof s->job, "%s", job);
        s->began = s->drawn = now;
        s->first = done; /* of a download that goes on, most may have been there */
        s->tenth = -1;
    }
    const double share = done < total ? done / total : 1;
    const double elapsed = (double)(now - s->began) / (double)SECOND;
    const double rate = elapsed > 0 ? (done - s->first) / elapsed : 0,
                 left = rate > 0 ? (total - done) / rate : 0;
    if (share >= 1) {
        if (!s->terminal && s->tenth >= 0)
            fprintf(stderr, "%s: done in %.1f s\n", job, elapsed);
        clear(s);
        return;
    }
    /* A job that will be over within a second is not worth a line. */
    const bool is_long = elapsed > 1 || (elapsed > 0.3 && share < 0.2) || s->line_open;
    if (s->terminal && is_long && now - s->drawn > SECOND / 10) {
        draw_bar(s, share, rate, left);
        s->line_open = true;
        s->drawn = now;
    } else if (!s->terminal && is_long && (int)(share * 10) > s->tenth) {
        s->tenth = (int)(share * 10);
        fprintf(stderr, "%s: %.0f %%", job, share * 100);
        if (counts_bytes(job))
            fprintf(stderr, ", %.2f GB/s, %.0f s left", rate * 1e-9, left);
        fputc('\n', stderr);
    }
}

void cli_screen_reading(struct cli_screen *s, int64_t n)
{
    char text[32];
    if (!s->progress || !s->terminal)
        return;
    cli_thousands(n, text, sizeof text);
    pthread_mutex_lock(&s->lock);
    clear(s);
    snprintf(s->job, sizeof s->job, "prompt");
    s->began = s->drawn = clock_now();
    s->first = 0;
    fprintf(stderr, "reading %s tokens ...", text);
    fflush(stderr);
    s->line_open = true;
    pthread_mutex_unlock(&s->lock);
}

void cli_thousands(int64_t n, char *out, size_t cap)
{
    char plain[24];
    size_t k = 0;
    const int len = snprintf(plain, sizeof plain, "%lld", (long long)n);
    for (int i = 0; i < len && k + 2 < cap; i++) {
        if (i && plain[i - 1] != '-' && (len - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = plain[i];
    }
    out[k] = 0;
}

static int on_progress(void *arg, const char *job, double done, double total)
{
    struct cli *c = arg;
    if (!c->screen.progress || !(total > 0))
        return 0;
    pthread_mutex_lock(&c->screen.lock);
    show_progress(&c->screen, job, done, total);
    pthread_mutex_unlock(&c->screen.lock);
    return 0;
}

struct ingle_callbacks cli_callbacks(struct cli *c)
{
    return (struct ingle_callbacks){on_report, on_progress, c};
}

static int say(struct cli *c, ingle_status st, const char *text)
{
    cli_screen_clear(&c->screen);
    cli_push(c);
    if (st == INGLE_CANCEL) {
        fputs("ingle: error: interrupted\n", stderr);
        return CLI_INTERRUPTED;
    }
    cli_line("ingle: error: %s", text);
    return CLI_FAILURE;
}

int cli_fail(struct cli *c, const struct ingle_error *error)
{
    return say(c, error->status, error->text);
}

int cli_fail_err(struct cli *c, const struct err *err)
{
    return say(c, err->status, err->msg);
}

int cli_usage(struct cli *c, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cli_line("ingle: error: %s (see 'ingle %s%s--help')", text, c->command ? c->command : "",
             c->command ? " " : "");
    return CLI_USAGE;
}

void cli_push(struct cli *c)
{
    if (fflush(stdout) != 0 && !c->write_error)
        c->write_error = errno;
}

/* Whether standard output is a pipe that nobody reads: of a write inside printf() the errno is
 * lost. */
static bool reader_is_closed(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

int cli_flush(struct cli *c)
{
    cli_push(c);
    if (!c->write_error && !ferror(stdout))
        return CLI_OK;
    if (c->write_error == EPIPE || (!c->write_error && reader_is_closed()))
        return CLI_FAILURE;
    cli_screen_clear(&c->screen);
    fprintf(stderr, "ingle: error: standard output: %s\n",
            c->write_error ? strerror(c->write_error) : "cannot write");
    return CLI_FAILURE;
}
