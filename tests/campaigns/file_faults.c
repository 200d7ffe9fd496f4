/* Preloaded: the N-th file operation of one kind below a folder fails, or kills the process.
   Armed by fault_arm(); children that are started do not have it, for it leaves the environment. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, RENAME, UNLINK, MKDIR, RMDIR, FSYNC, CHMOD, LINK, TRUNCATE, KINDS };
static char root[PATH_MAX];
static int armed_kind = -1, armed_error;
static long armed_at, counts[KINDS];

void fault_arm(const char *folder, int kind, long at, int error) {
    snprintf(root, sizeof root, "%s", folder);
    armed_kind = kind; armed_at = at; armed_error = error;
    memset(counts, 0, sizeof counts);
}
long fault_count(int kind) { return counts[kind]; }

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("FAULT_FOLDER");
    if (folder) fault_arm(folder, atoi(getenv("FAULT_KIND")), atol(getenv("FAULT_AT")), atoi(getenv("FAULT_ERROR")));
    unsetenv("LD_PRELOAD"); unsetenv("FAULT_FOLDER");
}

static int below(int dir, const char *path) {
    char full[2 * PATH_MAX];
    if (!root[0] || !path) return 0;
    if (path[0] == '/') return strncmp(path, root, strlen(root)) == 0;
    char link[64], base[PATH_MAX];
    if (dir == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return 0;
        base[n] = 0;
    }
    snprintf(full, sizeof full, "%s/%s", base, path);
    return strncmp(full, root, strlen(root)) == 0;
}
static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return strncmp(path, root, strlen(root)) == 0;
}
/* 1: fail now */
static int meet(int kind) {
    long count = __sync_add_and_fetch(&counts[kind], 1);
    if (kind != armed_kind || count != armed_at) return 0;
    if (armed_error == 0) kill(getpid(), SIGKILL);
    errno = armed_error;
    return 1;
}
#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MODE va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list)
#define WRITES (flags & (O_WRONLY | O_RDWR | O_CREAT))

int open(const char *path, int flags, ...) { MODE; REAL(open); if (WRITES && below(AT_FDCWD, path) && meet(OPEN)) return -1; return real(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; REAL(open64); if (WRITES && below(AT_FDCWD, path) && meet(OPEN)) return -1; return real(path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE; REAL(openat); if (WRITES && below(dir, path) && meet(OPEN)) return -1; return real(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE; REAL(openat64); if (WRITES && below(dir, path) && meet(OPEN)) return -1; return real(dir, path, flags, mode); }
ssize_t write(int fd, const void *data, size_t size) { REAL(write); if (fd_below(fd) && meet(WRITE)) return -1; return real(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL(pwrite); if (fd_below(fd) && meet(WRITE)) return -1; return real(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { REAL(pwrite64); if (fd_below(fd) && meet(WRITE)) return -1; return real(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { REAL(writev); if (fd_below(fd) && meet(WRITE)) return -1; return real(fd, parts, n); }
int rename(const char *a, const char *b) { REAL(rename); if ((below(AT_FDCWD, a) || below(AT_FDCWD, b)) && meet(RENAME)) return -1; return real(a, b); }
int renameat(int d, const char *a, int e, const char *b) { REAL(renameat); if ((below(d, a) || below(e, b)) && meet(RENAME)) return -1; return real(d, a, e, b); }
int unlink(const char *path) { REAL(unlink); if (below(AT_FDCWD, path) && meet(UNLINK)) return -1; return real(path); }
int unlinkat(int dir, const char *path, int flags) { REAL(unlinkat); if (below(dir, path) && meet(flags & AT_REMOVEDIR ? RMDIR : UNLINK)) return -1; return real(dir, path, flags); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); if (below(AT_FDCWD, path) && meet(MKDIR)) return -1; return real(path, mode); }
int mkdirat(int dir, const char *path, mode_t mode) { REAL(mkdirat); if (below(dir, path) && meet(MKDIR)) return -1; return real(dir, path, mode); }
int rmdir(const char *path) { REAL(rmdir); if (below(AT_FDCWD, path) && meet(RMDIR)) return -1; return real(path); }
int fsync(int fd) { REAL(fsync); if (fd_below(fd) && meet(FSYNC)) return -1; return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); if (fd_below(fd) && meet(FSYNC)) return -1; return real(fd); }
int chmod(const char *path, mode_t mode) { REAL(chmod); if (below(AT_FDCWD, path) && meet(CHMOD)) return -1; return real(path, mode); }
int fchmod(int fd, mode_t mode) { REAL(fchmod); if (fd_below(fd) && meet(CHMOD)) return -1; return real(fd, mode); }
int link(const char *a, const char *b) { REAL(link); if (below(AT_FDCWD, b) && meet(LINK)) return -1; return real(a, b); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); if (fd_below(fd) && meet(TRUNCATE)) return -1; return real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); if (fd_below(fd) && meet(TRUNCATE)) return -1; return real(fd, size); }
