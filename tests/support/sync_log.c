/* Preloaded: each write, fsync, fdatasync and rename of a program is a line of the file SYNC_LOG, with the path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void tell(const char* what, const char* path, const char* to) {
  const char* log = getenv("SYNC_LOG");
  if (log == NULL) return;
  const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) abort();
  char line[8400];
  const int length = snprintf(line, sizeof line, "%s %s%s%s\n", what, path, *to ? " " : "", to);
  ssize_t (*const real)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  if (real(fd, line, (size_t)length) != length) abort();
  close(fd);
}

static void tell_file(const char* what, int fd) {
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(name, path, sizeof path - 1);
  if (length <= 0 || path[0] != '/') return; /* a socket, a pipe */
  path[length] = 0;
  tell(what, path, "");
}

ssize_t write(int fd, const void* data, size_t size) {
  ssize_t (*const real)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  tell_file("write", fd);
  return real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  ssize_t (*const real)(int, const struct iovec*, int) = dlsym(RTLD_NEXT, "writev");
  tell_file("write", fd);
  return real(fd, parts, count);
}

int fsync(int fd) {
  int (*const real)(int) = dlsym(RTLD_NEXT, "fsync");
  tell_file("sync", fd);
  return real(fd);
}

int fdatasync(int fd) {
  int (*const real)(int) = dlsym(RTLD_NEXT, "fdatasync");
  tell_file("sync", fd);
  return real(fd);
}

int rename(const char* from, const char* to) {
  int (*const real)(const char*, const char*) = dlsym(RTLD_NEXT, "rename");
  tell("rename", from, to);
  return real(from, to);
}
