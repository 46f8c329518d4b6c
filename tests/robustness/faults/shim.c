/* Faults of the system calls of one process, for tests/robustness/chaos.py. Preloaded; does nothing until a process arms it.

fault_arm(root, file, calls, nth, sticky, action, value): at the nth call of one of the kinds in the mask `calls` on a
path that contains `root` and `file`, fail with errno `value` (action 0) or send the signal `value` to the process
(action 1). `sticky`: all later calls, too. fault_redirect(from, to): connect to another port of this machine. Both hold
for the process that armed them, and not for its children. What stdio writes from its own buffer is not seen. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CREATE = 1, OPEN = 2, READ = 4, WRITE = 8, FSYNC = 16, RENAME = 32, MKDIR = 64, UNLINK = 128 };

static struct { int pid, calls, nth, sticky, action, value; char root[512], file[256]; } armed;
static atomic_int count;
static int port_pid, port_from, port_to;

void fault_arm(const char *root, const char *file, int calls, int nth, int sticky, int action, int value) {
    snprintf(armed.root, sizeof armed.root, "%s", root);
    snprintf(armed.file, sizeof armed.file, "%s", file);
    armed.calls = calls, armed.nth = nth, armed.sticky = sticky, armed.action = action, armed.value = value;
    atomic_store(&count, 0);
    armed.pid = getpid();
}

void fault_redirect(int from, int to) { port_from = from, port_to = to, port_pid = getpid(); }

static int fault(int call, const char *path) {
    if (!(armed.calls & call) || armed.pid != getpid() || !strstr(path, armed.root) || !strstr(path, armed.file))
        return 0;
    int n = atomic_fetch_add(&count, 1) + 1;
    if (n < armed.nth || (n > armed.nth && !armed.sticky)) return 0;
    if (armed.action == 0) { errno = armed.value; return 1; }
    syscall(SYS_kill, getpid(), armed.value);
    return 0;
}

static int fault_fd(int call, int fd) {
    if (!(armed.calls & call) || armed.pid != getpid()) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fault(call, path);
}

static int fault_at(int call, int folder, const char *name) {
    if (!(armed.calls & call) || armed.pid != getpid()) return 0;
    if (folder == AT_FDCWD || name[0] == '/') return fault(call, name);
    char link[64], path[8192];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4000);
    if (size < 0) return 0;
    snprintf(path + size, sizeof path - size, "/%s", name);
    return fault(call, path);
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int kind(int flags) { return (flags & (O_WRONLY | O_RDWR | O_CREAT)) ? CREATE : OPEN; }

#define MODE \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); MODE \
        return fault(kind(flags), path) ? -1 : next(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        NEXT(name); MODE \
        return fault_at(kind(flags), folder, path) ? -1 : next(folder, path, flags, mode); \
    }
#define FOPENS(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(name); \
        return fault(mode[0] == 'r' ? OPEN : CREATE, path) ? NULL : next(path, mode); \
    }
OPENS(open) OPENS(open64) OPENS_AT(openat) OPENS_AT(openat64) FOPENS(fopen) FOPENS(fopen64)

#define WRAPS(type, name, parameters, fails, arguments) \
    type name parameters { \
        NEXT(name); \
        return fails ? -1 : next arguments; \
    }
WRAPS(ssize_t, write, (int fd, const void *data, size_t size), fault_fd(WRITE, fd), (fd, data, size))
WRAPS(ssize_t, read, (int fd, void *data, size_t size), fault_fd(READ, fd), (fd, data, size))
WRAPS(ssize_t, pread, (int fd, void *data, size_t size, off_t at), fault_fd(READ, fd), (fd, data, size, at))
WRAPS(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), fault_fd(READ, fd), (fd, data, size, at))
WRAPS(int, fsync, (int fd), fault_fd(FSYNC, fd), (fd))
WRAPS(int, rename, (const char *from, const char *to), fault(RENAME, to), (from, to))
WRAPS(int, mkdir, (const char *path, mode_t mode), fault(MKDIR, path), (path, mode))
WRAPS(int, unlink, (const char *path), fault(UNLINK, path), (path))
WRAPS(int, rmdir, (const char *path), fault(UNLINK, path), (path))
WRAPS(int, unlinkat, (int folder, const char *path, int flags), fault_at(UNLINK, folder, path), (folder, path, flags))

int connect(int fd, const struct sockaddr *address, socklen_t size) {
    NEXT(connect);
    char copy[128];
    if (port_pid != getpid() || size > sizeof copy) return next(fd, address, size);
    memcpy(copy, address, size);
    struct sockaddr_in *v4 = (struct sockaddr_in *)copy; /* the port of IPv6 is at the same place */
    if ((v4->sin_family == AF_INET || v4->sin_family == AF_INET6) && v4->sin_port == htons(port_from))
        v4->sin_port = htons(port_to);
    return next(fd, (struct sockaddr *)copy, size);
}
