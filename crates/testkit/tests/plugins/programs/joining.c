/* A library that waits for a thread when it is unloaded, as those do that have threads of their own. */
void end_and_join(void);

__attribute__((destructor)) static void unload(void)
{
    end_and_join();
}
