/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/editor.h"

#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

/* A signal handler has no other way to know what runs; the command's main thread writes. */
static struct ingle_engine *volatile engine;
static volatile sig_atomic_t count, prompt, has_terminal;
static struct termios terminal;

static void give_back(void)
{
    if (!has_terminal)
        return;
    static const char plain[] = CLI_PASTE_OFF "\033[0m"; /* also when a thought was shown */
    if (write(STDOUT_FILENO, plain, sizeof plain - 1) < 0)
        return;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
}

/* Ends the program as the signal does. */
static void on_end(int signal_number)
{
    give_back();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void cli_interrupt_terminal(void)
{
    static const int ends[] = {SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action, was;
    has_terminal = tcgetattr(STDIN_FILENO, &terminal) == 0;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_end;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!sigaction(ends[i], NULL, &was) && was.sa_handler == SIG_DFL)
            sigaction(ends[i], &action, NULL);
    cli_interrupt_engine(NULL);
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    static const char hint[] = "\n" CLI_LEAVE_HINT "\n";
    count++;
    struct ingle_engine *e = engine;
    if (e && !prompt)
        ingle_engine_cancel(e);
    if (count > 1 || !e) {
        give_back();
        _exit(CLI_INTERRUPTED);
    }
    if (prompt && write(STDERR_FILENO, hint, sizeof hint - 1) < 0)
        _exit(CLI_INTERRUPTED);
}

void cli_interrupt_engine(struct ingle_engine *e)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    engine = e;
    sigaction(SIGINT, &action, NULL);
}

int cli_interrupts(void)
{
    return count;
}

void cli_interrupt_reset(void)
{
    count = 0;
}

void cli_interrupt_prompt(bool at_prompt, bool on_exit)
{
    count = on_exit; /* what stopped an answer does not leave the program */
    prompt = at_prompt;
}
