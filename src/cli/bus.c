/* SPDX-License-Identifier: Apache-2.0 */
/* bus - the last words when a mapped file is not what it was: somebody cut it, or its disk
 * fails. */
#define _GNU_SOURCE
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 4352 };

/* Only what a signal handler may call. */
static void say(const char *text)
{
    const ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n;
}

static const char *hex(const char *at, uintptr_t *out)
{
    *out = 0;
    for (;; at++) {
        const int d = *at >= '0' && *at <= '9'   ? *at - '0'
                      : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                                                 : -1;
        if (d < 0)
            return at;
        *out = *out << 4 | (uintptr_t)d;
    }
}

/* The file of a line of /proc/self/maps ("from-to rights offset device inode path") if the address
 * is in it, else NULL. */
static const char *file_of(const char *line, uintptr_t address)
{
    uintptr_t from, to;
    const char *at = hex(line, &from);
    if (*at == '-')
        at = hex(at + 1, &to);
    else
        return NULL;
    const char *path = strchr(at, '/');
    return address >= from && address < to ? path : NULL;
}

static void name_file(uintptr_t address)
{
    char line[LINE];
    size_t n = 0;
    char c;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && read(fd, &c, 1) == 1) {
        if (c != '\n') {
            line[n] = (unsigned char)c < 32 || c == 127 ? '?' : c;
            n += n < LINE - 1;
            continue;
        }
        line[n] = 0;
        n = 0;
        const char *path = file_of(line, address);
        if (path) {
            say(" '");
            say(path);
            say("'");
            return;
        }
    }
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    say("\ningle: error: the mapped file");
    name_file((uintptr_t)info->si_addr);
    say(" became shorter while it was in use, or its disk does not give it back\n");
    _exit(CLI_IO);
}

void cli_watch_files(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
