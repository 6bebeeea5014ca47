/* Records what a process writes below a directory, in the order of the calls, so that a test can
 * rebuild what a disk would hold after a power failure. Loaded with LD_PRELOAD.
 *
 * RECORD_ROOT is the directory, RECORD_LOG the file of records: operation, inode, offset, the
 * lengths of two strings (20 + 8 bytes, little endian), and the strings. A sync has two records:
 * only what was recorded before its BEGIN is on disk after its END. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, LINK, MKDIR };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static const char *root;

#define REAL(name, type, ...) static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
    root = getenv("RECORD_ROOT");
    const char *path = getenv("RECORD_LOG");
    REAL("open", int, const char *, int, ...);
    if (root && path) log_fd = real(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int inside(const char *path) {
    return log_fd >= 0 && path && !strncmp(path, root, strlen(root));
}

/* The path of a regular file or directory below the root; 0 if it is anything else. */
static int known(int fd, struct stat *found, char *path) {
    char link[64];
    if (log_fd < 0 || fd == log_fd || fstat(fd, found)) return 0;
    if (!S_ISREG(found->st_mode) && !S_ISDIR(found->st_mode)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return inside(path);
}

static void record(uint32_t op, uint64_t inode, uint64_t offset, const void *a, uint32_t a_length,
                   const void *b, uint32_t b_length) {
    REAL("writev", ssize_t, int, const struct iovec *, int);
    uint32_t head[7] = {op, (uint32_t)inode, (uint32_t)(inode >> 32), (uint32_t)offset,
                        (uint32_t)(offset >> 32), a_length, b_length};
    struct iovec parts[3] = {{head, sizeof head}, {(void *)a, a_length}, {(void *)b, b_length}};
    if (real(log_fd, parts, 3) < 0) abort();
}

static int open_recorded(const char *symbol, const char *path, int flags, mode_t mode) {
    REAL("open", int, const char *, int, ...);
    (void)symbol;
    if (!inside(path) || !(flags & (O_CREAT | O_TRUNC))) return real(path, flags, mode);
    pthread_mutex_lock(&lock);
    int existed = access(path, F_OK) == 0;
    int fd = real(path, flags, mode);
    struct stat found;
    if (fd >= 0 && !fstat(fd, &found)) {
        if (!existed) record(CREATE, found.st_ino, 0, path, strlen(path), "", 0);
        else if (flags & O_TRUNC) record(TRUNCATE, found.st_ino, 0, "", 0, "", 0);
    }
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return fd;
}

#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    return open_recorded(#name, path, flags, mode); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    if (path[0] == '/') return open_recorded(#name, path, flags, mode); \
    REAL(#name, int, int, const char *, int, ...); return real(folder, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

static ssize_t written(int fd, const void *data, ssize_t length, off_t offset) {
    struct stat found;
    char path[PATH_MAX];
    if (length > 0 && known(fd, &found, path))
        record(WRITE, found.st_ino, offset, data, length, "", 0);
    return length;
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL("write", ssize_t, int, const void *, size_t);
    struct stat found;
    char path[PATH_MAX];
    if (!known(fd, &found, path)) return real(fd, data, length);
    pthread_mutex_lock(&lock);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    if (fcntl(fd, F_GETFL) & O_APPEND) offset = found.st_size;
    ssize_t done = written(fd, data, real(fd, data, length), offset);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name) ssize_t name(int fd, const void *data, size_t length, off_t offset) { \
    REAL(#name, ssize_t, int, const void *, size_t, off_t); \
    pthread_mutex_lock(&lock); \
    ssize_t done = written(fd, data, real(fd, data, length, offset), offset); \
    pthread_mutex_unlock(&lock); \
    return done; }
PWRITE(pwrite)
PWRITE(pwrite64)

#define FTRUNCATE(name) int name(int fd, off_t size) { \
    REAL(#name, int, int, off_t); \
    struct stat found; char path[PATH_MAX]; \
    pthread_mutex_lock(&lock); \
    int done = real(fd, size); \
    if (!done && known(fd, &found, path)) record(TRUNCATE, found.st_ino, size, "", 0, "", 0); \
    pthread_mutex_unlock(&lock); \
    return done; }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

#define SYNC(name) int name(int fd) { \
    REAL(#name, int, int); \
    struct stat found; char path[PATH_MAX]; \
    if (!known(fd, &found, path)) return real(fd); \
    pthread_mutex_lock(&lock); \
    record(SYNC_BEGIN, found.st_ino, fd, path, strlen(path), "", 0); \
    pthread_mutex_unlock(&lock); \
    int done = real(fd); \
    pthread_mutex_lock(&lock); \
    if (!done) record(SYNC_END, found.st_ino, fd, path, strlen(path), "", 0); \
    pthread_mutex_unlock(&lock); \
    return done; }
SYNC(fsync)
SYNC(fdatasync)

#define NAMES(name, op) int name(const char *a, const char *b) { \
    REAL(#name, int, const char *, const char *); \
    if (!inside(b)) return real(a, b); \
    pthread_mutex_lock(&lock); \
    int done = real(a, b); \
    if (!done) record(op, 0, 0, a, strlen(a), b, strlen(b)); \
    pthread_mutex_unlock(&lock); \
    return done; }
NAMES(rename, RENAME)
NAMES(link, LINK)

int unlink(const char *a) {
    REAL("unlink", int, const char *);
    pthread_mutex_lock(&lock);
    int done = real(a);
    if (!done && inside(a)) record(UNLINK, 0, 0, a, strlen(a), "", 0);
    pthread_mutex_unlock(&lock);
    return done;
}

int mkdir(const char *a, mode_t mode) {
    REAL("mkdir", int, const char *, mode_t);
    pthread_mutex_lock(&lock);
    int done = real(a, mode);
    if (!done && inside(a)) record(MKDIR, 0, 0, a, strlen(a), "", 0);
    pthread_mutex_unlock(&lock);
    return done;
}
