/* A library that has another `io_submit` than libaio, which calls it, or the program that it is linked to. */
#include <stdio.h>

#ifdef PROGRAM
int begin_job(int number);

int main(void)
{
    printf("%d\n", begin_job(2));
    printf("%d\n", begin_job(3));
    return 0;
}
#else
double io_submit(int number, double a, double b, const char *name, int c, int d, int e, int f)
{
    return name[0] == 'j' ? number + 10 * a + 100 * b + 1000 * c + 10000 * d + 100000 * e + 1000000 * f : -1;
}

int begin_job(int number)
{
    return (int)io_submit(number, 3, 4, "job", 5, 6, 7, 8);
}
#endif
