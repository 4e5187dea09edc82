/* caller PLUGIN: loads it where nobody else finds its symbols. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*ring_once)(void) = plugin ? (int (*)(void))dlsym(plugin, "ring_once") : NULL;

    if (!ring_once)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    printf("ring: %d\n", ring_once());
    return 0;
}
