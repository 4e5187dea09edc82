/* caller PLUGIN...: loads each where nobody else finds its symbols, and unloads it again. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        void *plugin = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
        int (*ring_once)(void) = plugin ? (int (*)(void))dlsym(plugin, "ring_once") : NULL;

        if (!ring_once)
            return fprintf(stderr, "%s\n", dlerror()), 2;
        printf("ring: %d\n", ring_once());
        dlclose(plugin);
    }
    return 0;
}
