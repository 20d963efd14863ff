/* LD_PRELOAD: reads of chosen files fail as they do on a failing disk or file server.

   FAULTS="TEXT:ERRNO:TIMES": the first TIMES reads of every file whose path contains TEXT fail with ERRNO. Counted in
   each process by itself. The variable is looked up at every read, so that a process may change it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define FILES 4096

static unsigned counts[FILES];

static int fails(int fd) {
    const char *faults = getenv("FAULTS");
    if (faults == NULL || *faults == '\0')
        return 0;
    char text[256], link[64], path[4096];
    int number;
    unsigned times;
    if (sscanf(faults, "%255[^:]:%d:%u", text, &number, &times) != 3)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    if (strstr(path, text) == NULL)
        return 0;
    unsigned long hash = 5381;
    for (const char *letter = path; *letter; letter++)
        hash = hash * 33 + (unsigned char)*letter;
    if (__sync_fetch_and_add(&counts[hash % FILES], 1) >= times)
        return 0;
    errno = number;
    return 1;
}

ssize_t read(int fd, void *buffer, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "read");
    return fails(fd) ? -1 : real(fd, buffer, count);
}

ssize_t pread(int fd, void *buffer, size_t count, off_t offset) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pread");
    return fails(fd) ? -1 : real(fd, buffer, count, offset);
}

ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset) {
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pread64");
    return fails(fd) ? -1 : real(fd, buffer, count, offset);
}
