/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of a terminal, edited with libedit.  Characters are read in the terminal's encoding; the
 * editor sees them whole, and the caller gets UTF-8.  What is pasted is one piece of text, whatever
 * line ends are in it.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/editor.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { REPLACEMENT = 0xFFFD, HISTORY = 1000, MOST_PASTED = 16 << 20 };

static const wchar_t PASTE_END[] = L"\033[201~";
enum { N_PASTE_END = sizeof PASTE_END / sizeof *PASTE_END - 1 };

struct cli_editor {
    EditLine *line;
    HistoryW *history;
    const char *prompt;
    mbstate_t state;    /* of the character whose bytes come */
    char again;         /* a byte that ended a character too early */
    bool has_again, pastes; /* pastes: the terminal brackets them when it is asked to */
    cli_complete_fn *complete;
    void *complete_arg;
    struct str offered; /* words, each with a 0 */
    size_t n_offered, n_common, n_same;
    bool offer_ends;
    bool broken, was_empty; /* Ctrl-C ended the line, which was empty */
};

/* How the terminal writes letters: as the environment says, or in UTF-8 if it says nothing that is
 * known here.  Numbers keep their point. */
static void set_encoding(void)
{
    const char *name = setlocale(LC_CTYPE, "");
    if (name && strcmp(name, "C") != 0 && strcmp(name, "POSIX") != 0)
        return;
    static const char *const utf8[] = {"C.UTF-8", "C.utf8", "en_US.UTF-8"};
    for (size_t i = 0; i < sizeof utf8 / sizeof *utf8; i++)
        if (setlocale(LC_CTYPE, utf8[i]))
            return;
}

static struct cli_editor *editor_of(EditLine *line)
{
    void *editor = NULL;
    return el_wget(line, EL_CLIENTDATA, &editor) ? NULL : editor;
}

static char *prompt_text(EditLine *line)
{
    static char nothing[] = "";
    const struct cli_editor *e = editor_of(line);
    union {
        const char *in;
        char *out;
    } text = {.in = e ? e->prompt : nothing};
    return text.out;
}

static ssize_t read_byte(struct cli_editor *e, char *byte)
{
    ssize_t n;
    if (e->has_again) {
        e->has_again = false;
        *byte = e->again;
        return 1;
    }
    while ((n = read(STDIN_FILENO, byte, 1)) < 0 && errno == EINTR)
        ;
    return n;
}

/* The next character; bytes that are none are U+FFFD. */
static int read_character(EditLine *line, wchar_t *out)
{
    struct cli_editor *e = editor_of(line);
    char byte;
    for (;;) {
        const ssize_t n = e ? read_byte(e, &byte) : -1;
        if (n <= 0)
            return (int)n;
        const bool began = !mbsinit(&e->state);
        const size_t k = mbrtowc(out, &byte, 1, &e->state);
        if (k == (size_t)-2)
            continue;
        if (k == (size_t)-1) {
            memset(&e->state, 0, sizeof e->state);
            e->again = byte;
            e->has_again = began;
            *out = REPLACEMENT;
        }
        return 1;
    }
}

/* Puts what is pasted into the line, with its line feeds. */
static unsigned char paste(EditLine *line, int key)
{
    wchar_t *text = NULL, c, last = 0;
    size_t n = 0, cap = 0;
    bool ended = false;
    (void)key;
    while (!ended && el_wgetc(line, &c) == 1) {
        /* CR LF is one line end; the editor has the terminal swap the two. */
        const bool pair = (c == L'\n' && last == L'\r') || (c == L'\r' && last == L'\n');
        last = pair ? 0 : c;
        if (pair || !c)
            continue;
        if (n >= MOST_PASTED) { /* the end must be found all the same */
            wmemmove(text + n - N_PASTE_END, text + n - N_PASTE_END + 1, N_PASTE_END - 1);
            n--;
        }
        if (!mem_grow(&text, &cap, n + 2, sizeof *text))
            break;
        text[n++] = c == L'\r' ? L'\n' : c;
        ended = n >= N_PASTE_END && wmemcmp(text + n - N_PASTE_END, PASTE_END, N_PASTE_END) == 0;
    }
    if (text) {
        text[ended ? n - N_PASTE_END : n] = 0;
        (void)el_winsertstr(line, text);
    }
    mem_free(text);
    return CC_REFRESH;
}

void cli_editor_offer(struct cli_editor *e, const char *word, size_t n_same, bool ends)
{
    size_t k = 0;
    while (k < e->n_common && word[k] == e->offered.at[k])
        k++;
    e->n_common = e->n_offered++ ? k : strlen(word);
    e->n_same = n_same;
    e->offer_ends = ends;
    str_add(&e->offered, word, strlen(word) + 1);
}

/* The line up to the cursor, in UTF-8. */
static void text_before(EditLine *line, struct str *out)
{
    const LineInfoW *text = el_wline(line);
    for (const wchar_t *c = text->buffer; c < text->cursor; c++) {
        char bytes[4];
        str_add(out, bytes, utf8_encode((uint32_t)*c, bytes));
    }
}

static bool insert(EditLine *line, const char *text, size_t n)
{
    wchar_t *wide = mem_calloc(n + 1, sizeof *wide);
    size_t k = 0;
    for (size_t i = 0; wide && i < n;) {
        uint32_t c;
        i += utf8_decode(text + i, n - i, &c);
        wide[k++] = c == UTF8_BAD ? REPLACEMENT : (wchar_t)c;
    }
    const bool done = wide && k && !el_winsertstr(line, wide);
    mem_free(wide);
    return done;
}

static void list_offered(const struct cli_editor *e)
{
    putchar('\n');
    for (const char *word = e->offered.at; word < e->offered.at + e->offered.n;
         word += strlen(word) + 1)
        printf("%s%s", word == e->offered.at ? "" : "  ", CLI_SHOWN(word));
    putchar('\n');
}

/* Tab.  In text that is no command it is itself. */
static unsigned char complete(EditLine *line, int key)
{
    struct cli_editor *e = editor_of(line);
    struct str before;
    unsigned char result = CC_ERROR;
    (void)key;
    str_init(&before);
    text_before(line, &before);
    if (!e || !e->complete || !str_ok(&before) || !before.n || before.at[0] != '/') {
        result = before.n && before.at[0] != '/' && insert(line, "\t", 1) ? CC_REFRESH : CC_ERROR;
    } else {
        str_clear(&e->offered);
        e->n_offered = e->n_common = e->n_same = 0;
        e->complete(e->complete_arg, e, before.at);
        if (e->n_offered && str_ok(&e->offered)) {
            while (e->n_common && (e->offered.at[e->n_common] & 0xC0) == 0x80)
                e->n_common--; /* whole characters */
            const bool more = e->n_common > e->n_same &&
                              insert(line, e->offered.at + e->n_same, e->n_common - e->n_same);
            if (e->n_offered == 1)
                result = (e->offer_ends && insert(line, " ", 1)) || more ? CC_REFRESH : CC_ERROR;
            else if (more)
                result = CC_REFRESH;
            else {
                list_offered(e);
                result = CC_REDISPLAY;
            }
        }
    }
    str_release(&before);
    return result;
}

void cli_editor_complete(struct cli_editor *e, cli_complete_fn *fn, void *arg)
{
    e->complete = fn;
    e->complete_arg = arg;
}

/* Ctrl-C: the line ends where it stands, and is dropped. */
static unsigned char interrupt(EditLine *line, int key)
{
    static const wchar_t end[] = L"\n";
    struct cli_editor *e = editor_of(line);
    const LineInfoW *text = el_wline(line);
    (void)key;
    if (!e)
        return CC_ERROR;
    e->broken = true;
    e->was_empty = text->lastchar == text->buffer;
    (void)el_cursor(line, (int)(text->lastchar - text->cursor));
    el_wpush(line, end);
    return CC_REFRESH;
}

/* While a line is edited Ctrl-C is a key.  Otherwise it is a signal, and the terminal holds what is
 * typed: in lines it would cut them at 4,095 bytes and show them in the middle of answers. */
static void set_terminal(EditLine *line)
{
    el_wset(line, EL_SETTY, L"-d", L"intr=", NULL);
    el_wset(line, EL_SETTY, L"-x", L"-icanon", L"-echo", L"-icrnl", NULL);
    el_wset(line, EL_PREP_TERM, 1);
    el_wset(line, EL_PREP_TERM, 0);
}

struct cli_editor *cli_editor_open(void)
{
    HistEventW event;
    const char *term = getenv("TERM");
    struct cli_editor *e = mem_zalloc(sizeof *e);
    if (!e)
        return NULL;
    set_encoding();
    e->prompt = "";
    str_init(&e->offered);
    e->pastes = term && strcmp(term, "dumb") != 0;
    e->history = history_winit();
    e->line = el_init("ingle", stdin, stdout, stderr);
    if (!e->history || !e->line) {
        cli_editor_close(e);
        return NULL;
    }
    history_w(e->history, &event, H_SETSIZE, HISTORY);
    el_wset(e->line, EL_CLIENTDATA, e);
    el_wset(e->line, EL_GETCFN, read_character);
    el_set(e->line, EL_PROMPT, prompt_text);
    el_wset(e->line, EL_EDITOR, L"emacs");
    /* A Ctrl-D typed while the terminal is in line mode reaches the editor as a NUL. */
    el_wset(e->line, EL_BIND, L"^@", L"em-delete-or-list", NULL);
    el_wset(e->line, EL_ADDFN, L"ingle-paste", L"Takes pasted text", paste);
    el_wset(e->line, EL_BIND, L"\\e[200~", L"ingle-paste", NULL);
    el_wset(e->line, EL_ADDFN, L"ingle-interrupt", L"Drops the line", interrupt);
    el_wset(e->line, EL_BIND, L"^C", L"ingle-interrupt", NULL);
    el_wset(e->line, EL_ADDFN, L"ingle-complete", L"Completes a command", complete);
    el_wset(e->line, EL_BIND, L"^I", L"ingle-complete", NULL);
    el_wset(e->line, EL_SIGNAL, 0);
    el_wset(e->line, EL_HIST, history_w, e->history);
    set_terminal(e->line);
    if (e->pastes)
        fputs(CLI_PASTE_ON, stdout);
    (void)fflush(stdout);
    return e;
}

void cli_editor_close(struct cli_editor *e)
{
    if (!e)
        return;
    if (e->line && e->pastes)
        fputs(CLI_PASTE_OFF, stdout);
    if (e->line)
        el_end(e->line);
    if (e->history)
        history_wend(e->history);
    str_release(&e->offered);
    mem_free(e);
}

enum cli_got cli_editor_line(struct cli_editor *e, const char *prompt, struct str *out)
{
    int n = 0;
    e->prompt = prompt;
    e->broken = false;
    el_wset(e->line, EL_PREP_TERM, 1); /* before the prompt is drawn: who sees it may type */
    const wchar_t *line = el_wgets(e->line, &n);
    if (e->broken)
        return e->was_empty ? CLI_LINE_BREAK : CLI_LINE_DROPPED;
    if (!line || n <= 0)
        return CLI_NO_LINE;
    if (line[n - 1] == L'\n')
        n--;
    for (int i = 0; i < n; i++) {
        char bytes[4];
        str_add(out, bytes, utf8_encode((uint32_t)line[i], bytes));
    }
    return CLI_LINE;
}

void cli_editor_remember(struct cli_editor *e, const char *text, size_t n)
{
    HistEventW event;
    size_t k = 0;
    wchar_t *wide = mem_calloc(n + 1, sizeof *wide);
    for (size_t i = 0; wide && i < n;) {
        uint32_t c;
        i += utf8_decode(text + i, n - i, &c);
        wide[k++] = c == UTF8_BAD ? REPLACEMENT : (wchar_t)c;
    }
    if (wide)
        history_w(e->history, &event, H_ENTER, wide);
    mem_free(wide);
}
