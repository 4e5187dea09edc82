#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/epoll.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
/* st server PORT THREADS MODE | st client PORT THREADS SECONDS ROUNDS */
static int ep, ep2, lfd, mode; static atomic_long served, conns;
static void arm(int fd,int op,int et){ struct epoll_event e={.events=EPOLLIN|EPOLLRDHUP|(et?EPOLLET:0)|((mode&1)?EPOLLONESHOT:0),.data.u64=((unsigned long)0xabcd<<32)|(unsigned)fd}; if(epoll_ctl(ep,op,fd,&e)) { if(errno!=EBADF&&errno!=ENOENT) {perror("ctl");} } }
static void *work(void*a){ struct epoll_event ev[16]; char b[4096]; unsigned seed=(unsigned)(long)a*7919;
  for(;;){ int n=epoll_wait(ep,ev,(mode&1)?4:1,1000); for(int i=0;i<n;i++){ int fd=(int)ev[i].data.u32; if((ev[i].data.u64>>32)!=0xabcd){printf("BAD data %lx\n",(long)ev[i].data.u64);exit(3);}
     if(fd==lfd){ int c; while((c=accept4(lfd,0,0,SOCK_NONBLOCK))>=0){ conns++; int one=1; setsockopt(c,IPPROTO_TCP,TCP_NODELAY,&one,4); arm(c,EPOLL_CTL_ADD,mode&2); if(mode&4){struct epoll_event e={.events=0,.data.u64=1}; epoll_ctl(ep2,EPOLL_CTL_ADD,c,&e);} } arm(lfd,EPOLL_CTL_MOD,0); continue; }
     if((mode&8)&&(rand_r(&seed)&3)==0){ struct epoll_event e={0}; epoll_ctl(ep,EPOLL_CTL_DEL,fd,&e); }
     int gone=0; for(;;){ ssize_t r=recv(fd,b,sizeof b,0); if(r>0){ served++; if(send(fd,b,r,MSG_NOSIGNAL)!=r){ } if(!(mode&2)) break; } else if(r==0||errno!=EAGAIN){ gone=1; break;} else break; }
     if(gone){ close(fd); } else if(mode&8){ struct epoll_event e={.events=EPOLLIN|EPOLLRDHUP|((mode&1)?EPOLLONESHOT:0)|((mode&2)?EPOLLET:0),.data.u64=((unsigned long)0xabcd<<32)|(unsigned)fd}; if(epoll_ctl(ep,EPOLL_CTL_MOD,fd,&e)&&errno==ENOENT) epoll_ctl(ep,EPOLL_CTL_ADD,fd,&e); }
     else if(mode&1) arm(fd,EPOLL_CTL_MOD,mode&2);
  } } }
static int port, rounds; static double secs; static atomic_long done, bad;
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec/1e9;}
static void *client(void*a){ unsigned seed=(unsigned)(long)a*31; double end=now()+secs; int e=epoll_create1(0);
  while(now()<end){ int s=socket(AF_INET,SOCK_STREAM|SOCK_NONBLOCK,0); struct sockaddr_in x={.sin_family=AF_INET,.sin_port=htons(port)}; inet_pton(AF_INET,"127.0.0.1",&x.sin_addr);
    connect(s,(void*)&x,sizeof x); struct epoll_event ev={.events=EPOLLOUT,.data.fd=s}; epoll_ctl(e,EPOLL_CTL_ADD,s,&ev);
    int k=rand_r(&seed)%rounds; int st=0; char b[300],c[300]; int len=0,got=0; double t0=now();
    for(int r=0;r<=k;){ int n=epoll_wait(e,&ev,1,2000); if(n==0){ printf("HANG client conn round %d of %d st %d len %d got %d\n",r,k,st,len,got); bad++; break; }
      if(n<0) continue;
      if(st==0){ len=1+rand_r(&seed)%200; for(int i=0;i<len;i++) b[i]=rand_r(&seed); got=0; if(send(s,b,len,MSG_NOSIGNAL)!=len){ perror("send"); bad++; break;} st=1; struct epoll_event m={.events=EPOLLIN,.data.fd=s}; epoll_ctl(e,EPOLL_CTL_MOD,s,&m); }
      else { ssize_t g=recv(s,c+got,len-got,0); if(g>0){got+=g; if(got==len){ if(memcmp(b,c,len)){printf("WRONG\n");bad++;} done++; r++; st=0; struct epoll_event m={.events=EPOLLOUT,.data.fd=s}; epoll_ctl(e,EPOLL_CTL_MOD,s,&m);} } else if(g==0){printf("EOF early\n");bad++;break;} }
    }
    if(rand_r(&seed)&1) epoll_ctl(e,EPOLL_CTL_DEL,s,&ev); close(s); (void)t0; }
  return 0; }
static void on_alarm(int s){ (void)s; }
int main(int c,char**v){ port=atoi(v[2]); int T=atoi(v[3]); signal(SIGPIPE,SIG_IGN);
  if(!strcmp(v[1],"server")){ mode=atoi(v[4]); lfd=socket(AF_INET,SOCK_STREAM|SOCK_NONBLOCK,0); int one=1; setsockopt(lfd,SOL_SOCKET,SO_REUSEADDR,&one,4); struct sockaddr_in x={.sin_family=AF_INET,.sin_port=htons(port)}; inet_pton(AF_INET,"127.0.0.1",&x.sin_addr); bind(lfd,(void*)&x,sizeof x); listen(lfd,512); ep=epoll_create1(0); ep2=epoll_create1(0); arm(lfd,EPOLL_CTL_ADD,0);
    pthread_t t; for(int i=1;i<T;i++) pthread_create(&t,0,work,(void*)(long)i); work((void*)99L); }
  else { secs=atof(v[4]); rounds=atoi(v[5]); if(c>6){ struct sigaction sa={.sa_handler=on_alarm,.sa_flags=SA_RESTART}; sigaction(SIGALRM,&sa,0); }
    if(T==1) client((void*)5L); else { pthread_t t[64]; for(int i=0;i<T;i++) pthread_create(&t[i],0,client,(void*)(long)(i+1)); for(int i=0;i<T;i++) pthread_join(t[i],0); }
    printf("client threads %d rounds done %ld bad %ld\n",T,done,bad); return bad!=0; } }
