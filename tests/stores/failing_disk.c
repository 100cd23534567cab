/* Makes a disk fail on demand, for files named in FAILING_DISK: `<that>.sync` fails fsync and fdatasync with EIO,
 * `<that>.full` fails writes with ENOSPC, as long as it exists. Preloaded by tests/stores/test_sqlite_disk.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd, const char *how) {
    const char *disk = getenv("FAILING_DISK");
    char name[4096], link[64], control[4096];
    if (disk == NULL) return 0;
    snprintf(control, sizeof control, "%s.%s", disk, how);
    if (access(control, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    return length >= (ssize_t)strlen(disk) && strncmp(name, disk, strlen(disk)) == 0;
}

int fsync(int fd) {
    if (fails(fd, "sync")) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
    if (fails(fd, "sync")) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
    if (fails(fd, "full")) { errno = ENOSPC; return -1; }
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (fails(fd, "full")) { errno = ENOSPC; return -1; }
    return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (fails(fd, "full")) { errno = ENOSPC; return -1; }
    return ((ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64"))(fd, data, size, at);
}
