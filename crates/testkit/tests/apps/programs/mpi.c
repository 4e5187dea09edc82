/* Point-to-point and collective operations whose results every rank checks; prints one line from rank 0 at the end. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int rank, ranks;

static void require(int condition, const char *what, long where)
{
    if (!condition) {
        fprintf(stderr, "rank %d: %s is wrong at %ld\n", rank, what, where);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int value(int from, long index)
{
    return (int)(index * 31 + from * 1000003L);
}

/* A ring of messages of all sizes, sent and received at once. */
static void point_to_point(int size)
{
    int *out = malloc(sizeof(int) * size), *in = malloc(sizeof(int) * size);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int round = 0; round < (size > 10000 ? 5 : 200); round++) {
        MPI_Request requests[2];
        for (int i = 0; i < size; i++)
            out[i] = value(rank + round, i);
        MPI_Irecv(in, size, MPI_INT, previous, round, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, size, MPI_INT, next, round, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < size; i++)
            require(in[i] == value(previous + round, i), "a message", i);
    }
    free(out);
    free(in);
}

/* Receives by tag against the order of sending. */
static void tags(void)
{
    enum { COUNT = 50 };
    if (rank == 0)
        for (int to = 1; to < ranks; to++)
            for (int tag = 0; tag < COUNT; tag++) {
                int word = value(to, tag);
                MPI_Send(&word, 1, MPI_INT, to, tag, MPI_COMM_WORLD);
            }
    else
        for (int tag = COUNT - 1; tag >= 0; tag--) {
            int word;
            MPI_Recv(&word, 1, MPI_INT, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            require(word == value(rank, tag), "a tagged message", tag);
        }
}

static void collective(int size)
{
    int *own = malloc(sizeof(int) * size * ranks), *all = malloc(sizeof(int) * size * ranks);
    for (int i = 0; i < size; i++)
        own[i] = rank == 1 ? value(1, i) : 0;
    MPI_Bcast(own, size, MPI_INT, 1, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++)
        require(own[i] == value(1, i), "a broadcast", i);

    for (int i = 0; i < size; i++)
        own[i] = rank + i;
    MPI_Allreduce(own, all, size, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++)
        require(all[i] == ranks * (ranks - 1) / 2 + ranks * i, "a sum", i);

    for (int i = 0; i < size; i++)
        own[i] = value(rank, i);
    MPI_Allgather(own, size, MPI_INT, all, size, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < size * ranks; i++)
        require(all[i] == value(i / size, i % size), "a gathering", i);

    for (int i = 0; i < size * ranks; i++)
        own[i] = value(rank * ranks + i / size, i % size);
    MPI_Alltoall(own, size, MPI_INT, all, size, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < size * ranks; i++)
        require(all[i] == value(i / size * ranks + rank, i % size), "an exchange", i);

    MPI_Barrier(MPI_COMM_WORLD);
    free(own);
    free(all);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int size = 1; size <= 1000000; size *= 10) {
        point_to_point(size);
        collective(size > 100000 ? 100000 : size);
    }
    tags();
    if (rank == 0)
        puts("all results are right");
    sleep(1); /* so that what the ranks have counted can be looked at */
    MPI_Finalize();
    return 0;
}
