/* How requests of a mount get to a front, although pyfuse3 shows neither its session nor its requests.
 *
 * pyfuse3 asks libfuse for the session's descriptor, waits until that is readable, and calls fuse_session_receive_buf.
 * Both are public functions of libfuse, called through the dynamic linker, which binds such calls to the first object
 * that has them: to this one, if it was loaded for all to see before pyfuse3 was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>

#include "front.h"

#define EXPORTED __attribute__((visibility("default")))
struct fuse_session;
EXPORTED int fuse_session_fd(struct fuse_session *session);
EXPORTED int fuse_session_receive_buf(struct fuse_session *session, struct fuse_buf *buf);

/* The front of the session that is made next, or has been. There is no other way to a function that takes the place of
 * another; whoever sets it does so before pyfuse3 is called, and until it has ended. */
static brv_front *serving;

typedef int receive_buf(void *, struct fuse_buf *);
typedef int session_fd(struct fuse_session *);

/* libfuse's own function, and how many bytes of a fuse_buf it knows; NULL if libfuse is not loaded. */
static void *libfuse(const char *function, size_t *known)
{
    static const struct {
        const char *name;
        size_t known;
    } versions[] = {{"libfuse3.so.3", offsetof(struct fuse_buf, mem_size)}, {"libfuse3.so.4", sizeof(struct fuse_buf)}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        void *library = dlopen(versions[i].name, RTLD_NOLOAD | RTLD_NOW);
        if (!library) continue;
        *known = versions[i].known;
        return dlsym(library, function);
    }
    return NULL;
}

int fuse_session_fd(struct fuse_session *session)
{
    size_t known;
    session_fd *fd = (session_fd *)libfuse("fuse_session_fd", &known);
    receive_buf *receive = (receive_buf *)libfuse("fuse_session_receive_buf", &known);
    if (!fd || !receive) return -1;
    const int device = fd(session);
    if (!serving) return device;
    const int loop = front_attach(serving, session, device, receive, known);
    return loop < 0 ? device : loop;
}

int fuse_session_receive_buf(struct fuse_session *session, struct fuse_buf *buf)
{
    if (serving && serving->session == session) return front_receive(serving, buf);
    size_t known;
    receive_buf *receive = (receive_buf *)libfuse("fuse_session_receive_buf", &known);
    return receive ? receive(session, buf) : -ENOSYS;
}

void brv_front_serve(brv_front *f) { serving = f; }

int brv_front_attached(const brv_front *f) { return f->session != NULL; }
