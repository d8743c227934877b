/* A poor file system below one folder, for a process that loads this before the C library.
 *
 * ECORL_FAKE_FS_FOLDER names the folder. ECORL_FAKE_FS says what is refused there, as words like
 * `locks=37`, parted by commas: the number is the errno.
 *
 *   links     hard links
 *   locks     POSIX locks, taken or asked for, and flock
 *   memory    shared mappings
 *   replace   a rename over a file that is there
 *   rename    every rename
 *   write     data and new files; the folder then reads, but is not changed
 *   attributes  chmod, and fsync of a folder
 *
 * ECORL_FAKE_FS_LATER says what else is refused once the file is there that ECORL_FAKE_FS_SWITCH
 * names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...)                          \
  static type (*real)(__VA_ARGS__);                    \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* The errno of a word in a list of them; 0: it is not there. */
static int number_of(const char *what, const char *words) {
  size_t length = strlen(what);
  for (const char *word = words; word; word = strchr(word, ',')) {
    if (*word == ',') ++word;
    if (!strncmp(word, what, length) && word[length] == '=') return atoi(word + length + 1);
  }
  return 0;
}

/* The errno with which something is refused; 0: it is allowed. */
static int refusal(const char *what) {
  const char *by = getenv("ECORL_FAKE_FS_SWITCH");
  int number = number_of(what, getenv("ECORL_FAKE_FS"));
  return number || !by || access(by, F_OK) ? number : number_of(what, getenv("ECORL_FAKE_FS_LATER"));
}

static int is_below(const char *path) {
  const char *folder = getenv("ECORL_FAKE_FS_FOLDER");
  return folder && path && !strncmp(path, folder, strlen(folder));
}

static int is_open_below(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return is_below(path);
}

/* Whether a call is refused; errno says why then. Paths are absolute in all that is tested. */
static int refuses(const char *what, int below) {
  int number = below ? refusal(what) : 0;
  if (number) errno = number;
  return number;
}

int link(const char *from, const char *to) {
  REAL(int, "link", const char *, const char *);
  return refuses("links", is_below(to)) ? -1 : real(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
  REAL(int, "linkat", int, const char *, int, const char *, int);
  return refuses("links", is_below(to)) ? -1 : real(a, from, b, to, flags);
}

int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  int below = is_below(to);
  if (refuses("rename", below) || refuses("write", below)) return -1;
  if (!access(to, F_OK) && refuses("replace", below)) return -1;
  return real(from, to);
}

static int is_lock(int command) {
  return command == F_GETLK || command == F_SETLK || command == F_SETLKW ||
         command == F_OFD_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

#define CONTROL(name)                                                             \
  int name(int fd, int command, ...) {                                            \
    REAL(int, #name, int, int, ...);                                              \
    va_list rest;                                                                 \
    va_start(rest, command);                                                      \
    void *argument = va_arg(rest, void *);                                        \
    va_end(rest);                                                                 \
    if (is_lock(command) && refuses("locks", is_open_below(fd))) return -1;       \
    return real(fd, command, argument);                                           \
  }
CONTROL(fcntl)
CONTROL(fcntl64)

int flock(int fd, int operation) {
  REAL(int, "flock", int, int);
  return refuses("locks", is_open_below(fd)) ? -1 : real(fd, operation);
}

#define MAP(name, offset_t)                                                        \
  void *name(void *at, size_t n, int protection, int flags, int fd, offset_t from) { \
    REAL(void *, #name, void *, size_t, int, int, int, offset_t);                  \
    if (fd >= 0 && (flags & MAP_SHARED) && refuses("memory", is_open_below(fd)))    \
      return MAP_FAILED;                                                           \
    return real(at, n, protection, flags, fd, from);                               \
  }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

#define OPEN(name)                                                              \
  int name(const char *path, int flags, ...) {                                  \
    REAL(int, #name, const char *, int, ...);                                   \
    va_list rest;                                                               \
    va_start(rest, flags);                                                      \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;     \
    va_end(rest);                                                               \
    int is_new = (flags & O_CREAT) && access(path, F_OK);                       \
    if ((is_new || (flags & O_TRUNC)) && refuses("write", is_below(path))) return -1; \
    return real(path, flags, mode);                                             \
  }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t n) {
  REAL(ssize_t, "write", int, const void *, size_t);
  return refuses("write", is_open_below(fd)) ? -1 : real(fd, data, n);
}

#define WRITE_AT(name, offset_t)                                     \
  ssize_t name(int fd, const void *data, size_t n, offset_t at) {    \
    REAL(ssize_t, #name, int, const void *, size_t, offset_t);       \
    return refuses("write", is_open_below(fd)) ? -1 : real(fd, data, n, at); \
  }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

#define TRUNCATE(name, offset_t)                                     \
  int name(int fd, offset_t n) {                                     \
    REAL(int, #name, int, offset_t);                                 \
    return refuses("write", is_open_below(fd)) ? -1 : real(fd, n);   \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int mkdir(const char *path, mode_t mode) {
  REAL(int, "mkdir", const char *, mode_t);
  return refuses("write", is_below(path)) ? -1 : real(path, mode);
}

/* A full disk or quota lets files go; a read-only one does not. */
int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  int is_kept = is_below(path) && refusal("write") == EROFS;
  return is_kept && refuses("write", 1) ? -1 : real(path);
}

int chmod(const char *path, mode_t mode) {
  REAL(int, "chmod", const char *, mode_t);
  return refuses("attributes", is_below(path)) ? -1 : real(path, mode);
}

int fsync(int fd) {
  REAL(int, "fsync", int);
  struct stat found;
  int is_folder = !fstat(fd, &found) && S_ISDIR(found.st_mode);
  return is_folder && refuses("attributes", is_open_below(fd)) ? -1 : real(fd);
}
