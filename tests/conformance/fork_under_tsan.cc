// The thread sanitizer ends a process that starts threads after a fork of one that had some. Tests
// whose peers are forked processes know what they do: the child uses nothing of its parent's
// threads.
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif
