/* Calls functions of a library with wrong arguments and says what they answer: misuse LIBRARY < ROWS
   A row is a name and its arguments; each is called in a child process. Writes the answer in front of the row: a number, "crash" or
   "hang". Arguments are words: a number, or
     null zeros data out text none   a pointer: NULL, to zeros, to numbers, to room for an answer, to the name of a setting, of none
     id team                         an id or a team of 3 ranks, by value
     STRUCT or STRUCT:AT=VALUE       a pointer to a struct as its initialiser leaves it, with the 32 bits at an offset changed
   Only for x86-64: arguments that do not fit six registers are on the stack, structs of more than 16 bytes always. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REGISTERS = 6, STACK = 20, ROOM = 1 << 16, POINTERS = 12 };

typedef int64_t W;
typedef int (*function)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W);

/* A versioned struct: its size, its magic number, and what its other 32-bit words are, but for pointers and some defaults. */
struct form { const char *name; int size; uint32_t magic, rest; int pointers[3]; };
static const struct form FORMS[] = {
  {"config", 120, 0xcafebeef, 0x80000000, {32, 48, 0}},
  {"call", 72, 0xcafebeef, 0x80000000, {16, 40, 64}},
  {"sim", 24, 0x74685283, 0, {0}},
  {"psk", 32, 0xcafebeef, 0, {0}},
  {"props", 184, 0xcafebeef, 0, {0}},
  {"needs", 112, 0xcafebeef, 0, {0}},
};

static char pages[POINTERS][ROOM];

static W made(const struct form *form, const char *change, char *at) {
  uint32_t *words = (uint32_t *)at;
  for (int i = 4; i < form->size / 4; i++) words[i] = form->rest;
  for (int i = 0; i < 3; i++)
    if (form->pointers[i]) memset(at + form->pointers[i], 0, 8);
  words[0] = form->size, words[1] = 0, words[2] = form->magic, words[3] = 23203;
  if (!strcmp(form->name, "call")) words[12] = 1, words[14] = words[15] = 0;
  int offset = 0;
  long value = 0;
  if (change && sscanf(change, "%d=%ld", &offset, &value) == 2) words[offset / 4] = (uint32_t)value;
  return (W)at;
}

static W pointer(const char *word, char *at) {
  if (!strcmp(word, "null")) return 0;
  if (!strcmp(word, "text")) return (W)strcpy(at, "NCCL_ALGO");
  if (!strcmp(word, "none")) return (W)strcpy(at, "NO_SUCH_SETTING");
  if (!strcmp(word, "data")) {
    for (int i = 0; i < ROOM / 4; i++) ((float *)at)[i] = 1;
    return (W)at;
  }
  if (!strcmp(word, "zeros") || !strcmp(word, "out")) return (W)at;
  char *change = strchr(word, ':');
  size_t length = change ? (size_t)(change - word) : strlen(word);
  for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
    if (strlen(FORMS[i].name) == length && !strncmp(word, FORMS[i].name, length)) return made(&FORMS[i], change ? change + 1 : 0, at);
  fprintf(stderr, "no argument is called %s\n", word);
  exit(90);
}

static int call(function f, char *words) {
  W r[REGISTERS] = {0}, s[STACK] = {0};
  int used = 0, pushed = 0, pages_used = 0;
  for (char *word = strtok(words, " \n"); word; word = strtok(0, " \n")) {
    W values[16] = {0};
    int count = 1, on_stack = 0;
    char *end;
    values[0] = strtoll(word, &end, 0);
    if (*end && !strcmp(word, "id")) count = 16, on_stack = 1;
    else if (*end && !strcmp(word, "team")) count = 2, values[0] = 3, values[1] = 1;
    else if (*end) values[0] = pointer(word, pages[pages_used++]);
    on_stack |= used + count > REGISTERS;
    for (int i = 0; i < count; i++) *(on_stack ? &s[pushed++] : &r[used++]) = values[i];
  }
  return f(r[0], r[1], r[2], r[3], r[4], r[5], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12],
           s[13], s[14], s[15], s[16], s[17], s[18], s[19]);
}

int main(int n, char **arguments) {
  char row[1024], words[1024], answer[16];
  void *library = n == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : 0;
  if (!library) return fprintf(stderr, "%s\n", n == 2 ? dlerror() : "misuse LIBRARY < ROWS"), 2;
  while (fgets(row, sizeof row, stdin)) {
    row[strcspn(row, "\n")] = 0;
    char *name = strtok(strcpy(words, row), " "), *rest = strtok(0, "");
    char none[] = "";
    void *found = dlsym(library, name);
    int ends[2], code = 0, status;
    if (!found || pipe(ends)) return fprintf(stderr, "%s is missing\n", name), 2;
    pid_t child = fork();
    if (!child) {
      alarm(20);
      dup2(open("/dev/null", O_WRONLY), 1); /* for the log of the library */
      code = call((function)found, rest ? rest : none);
      _exit(write(ends[1], &code, sizeof code) == sizeof code ? 0 : 1);
    }
    close(ends[1]);
    int has_answered = read(ends[0], &code, sizeof code) == sizeof code;
    close(ends[0]);
    waitpid(child, &status, 0);
    snprintf(answer, sizeof answer, has_answered ? "%d" : WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "hang" : "crash", code);
    printf("%s %s\n", answer, row);
    fflush(stdout);
  }
  return 0;
}
