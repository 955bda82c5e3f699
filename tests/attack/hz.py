"""hz.py NCONN NADDR NREQ [tables]: NCONN clients send NREQ GET /metrics each and read nothing / read all; /healthz probes from 127.0.0.1, every 20 ms."""
from psc import *
import resource; resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
n,na,nr,nt=map(int,sys.argv[1:5]); read=len(sys.argv)>5
p=Psd(pre=('nice','-n','-12')); c=C(p.port); c.join(job='m',inc=1)
for i in range(nt): assert c.table('m%d'%i).st==0
time.sleep(1)
G=b'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'
def probe():
    x=time.time(); s=socket.socket(); s.settimeout(15); 
    try:
        s.connect(('127.0.0.1',p.hport)); s.sendall(G); d=b''
        while True:
            k=s.recv(4096)
            if not k: break
            d+=k
        r=d[9:12]
    except OSError as e: r=repr(e)[:30]
    s.close(); return (time.time()-x)*1000,r
base=[probe() for _ in range(30)]
ss=[]
def att():
    for i in range(n):
        s=socket.socket(); s.bind(('127.6.%d.%d'%(i%na//200,1+i%na%200),0)); s.settimeout(2)
        if not read: s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,2048)
        try: s.connect(('127.0.0.1',p.hport)); s.sendall(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'*nr); s.setblocking(False); ss.append(s)
        except OSError: pass
    e=time.time()+6
    while read and time.time()<e:
        r,_,_=select.select(ss,[],[],.1)
        for s in r:
            try:
                if not s.recv(1<<20): ss.remove(s)
            except OSError: ss.remove(s)
t=threading.Thread(target=att); t.start(); R=[]; e=time.time()+8
while time.time()<e: R.append(probe()); time.sleep(.02)
t.join(); say('hz conns',n,'addresses',na,'requests each',nr,'tables',nt,'reading' if read else 'not reading','healthz before max %.1f'%max(x for x,_ in base),'during n %d p50 %.1f p99 %.1f max %.0f ms'%(len(R),pct([x for x,_ in R],.5),pct([x for x,_ in R],.99),max(x for x,_ in R)),{k:sum(1 for _,y in R if y==k) for k in {y for _,y in R}},'rss %.0f'%p.rss()); p.stop()
