"""http.py: slowloris 300 clients and variants; Host checks."""
from psc import *
import resource; resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
p=Psd()
def hz(n=10,src=None):
    L=[];codes={}
    for _ in range(n):
        t=time.time()
        try:
            s=socket.socket(); s.settimeout(5); 
            if src: s.bind((src,0))
            s.connect(('127.0.0.1',p.hport)); s.sendall(b'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'); d=b''
            while True:
                x=s.recv(4096)
                if not x: break
                d+=x
            c=d.split(b' ')[1:2]; c=c[0].decode() if c else 'none'
        except OSError as e: c=repr(e)
        codes[c]=codes.get(c,0)+1; L.append(time.time()-t); s.close(); time.sleep(.1)
    return codes,'max %.3f s p50 %.3f'%(max(L),pct(L,.5))
say('http alone',hz())
class Drip(threading.Thread):
    def __init__(s,n,kind,nsrc=1,rate=.5): super().__init__(daemon=True); s.n=n; s.kind=kind; s.nsrc=nsrc; s.rate=rate; s.stop=False; s.evict=0; s.conn=0
    def run(s):
        socks=[]; i=0
        while not s.stop:
            while len(socks)<s.n and not s.stop:
                i+=1; k=socket.socket(); k.bind(('127.4.%d.%d'%(i%s.nsrc//200,1+i%s.nsrc%200) if s.nsrc>1 else '127.0.0.1',0)); k.settimeout(1)
                try:
                    k.connect(('127.0.0.1',p.hport)); s.conn+=1
                    if s.kind=='head': k.sendall(b'GET /stats HTTP/1.1\r\nHost: localhost\r\n')
                    elif s.kind=='silent': pass
                    elif s.kind=='readslow': k.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,2048); k.sendall(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'*50)
                    elif s.kind=='post': k.sendall(b'POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n')
                    elif s.kind=='fullload': k.sendall(b'GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n'*20)
                    k.setblocking(False); socks.append(k)
                except OSError: k.close(); s.evict+=1; break
            for k in list(socks):
                try:
                    if s.kind!='readslow': 
                        try:
                            d=k.recv(65536 if s.kind=='fullload' else 10)
                            if d==b'': raise ConnectionResetError
                        except BlockingIOError: pass
                    if s.kind=='head': k.send(b'X-a: b\r\n')
                    elif s.kind=='post': k.send(b'x'*100)
                    elif s.kind=='fullload': k.send(b'GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n')
                    elif s.kind=='readslow': k.send(b'G'[:0])
                except BlockingIOError: pass
                except OSError: s.evict+=1; k.close(); socks.remove(k)
            time.sleep(s.rate if s.kind!='fullload' else .01)
        for k in socks: k.close()
for kind,ns in [('silent',1),('head',1),('head',50),('post',1),('post',50),('readslow',1),('readslow',50),('fullload',1),('fullload',50)]:
    d=Drip(300,kind,ns); d.start(); time.sleep(2)
    g=subprocess.Popen(['/usr/bin/python3','good.py',str(p.port),'3','h%s%d'%(kind,ns)],stdout=subprocess.PIPE,text=True)
    r=hz(20); r2=hz(5,'127.200.0.1'); d.stop=True; d.join(); say('http slowloris',kind,'addresses',ns,'healthz from 127.0.0.1',r,'from another',r2,'evicted',d.evict,'conn',d.conn,'rss %.0f'%p.rss(),'fds',p.nfd(),'worker',g.communicate()[0].strip()); time.sleep(.5)
def host(h,path='/stats',raw=None):
    s=socket.create_connection(('127.0.0.1',p.hport)); s.settimeout(3)
    s.sendall(raw or (b'GET '+path.encode()+b' HTTP/1.1\r\n'+(b'Host: '+h+b'\r\n' if h is not None else b'')+b'Connection: close\r\n\r\n'))
    try: d=s.recv(4096)
    except OSError as e: d=repr(e).encode()
    s.close(); return d.split(b'\r\n')[0][:40]
for h in [b'localhost',b'127.0.0.1',b'[::1]:80',b'evil.example.com',b'evil.example.com:7071',b'localhost.evil.com',b'127.0.0.1.evil.com',b'127.0.0.1.nip.io',b'evil',b'1.2.3.4',b'0x7f.1',b'7f000001',b'127.0.0.1@evil.com',b'evil.com#localhost',b'evil.com.',b'localhost.',b'',None,b'[::1].evil.com',b'[evil.com]',b'[evil.com]:80',b':80',b'1.2.3.4.5',b'1e1.evil.com',b'999.evil.com',b'evil.com:localhost',b'EVIL.COM',b'evil\x2ecom',b'vm',b'1.com',b'123.456',b'evil\tcom',b'evil..com',b'[::1]evil.com',b'[fe80::1%evil.com]',b'123.xn--80',b'a:b:c.evil.com',b'::ffff',b'dead.beef',b'1:evil.com']: say('host',h,host(h))
say('two hosts',host(b'',raw=b'GET /stats HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n'),host(b'',raw=b'GET /stats HTTP/1.1\r\nHost: evil.com\r\nHost: localhost\r\n\r\n'),'http/1.0 no host',host(b'',raw=b'GET /stats HTTP/1.0\r\n\r\n'),'abs uri',host(b'',raw=b'GET http://evil.com/stats HTTP/1.1\r\nHost: localhost\r\n\r\n'),'abs uri2',host(b'',raw=b'GET http://localhost/stats HTTP/1.1\r\nHost: evil.com\r\n\r\n'),'http1.0 evil',host(b'',raw=b'GET /stats HTTP/1.0\r\nHost: evil.com\r\n\r\n'),'case',host(b'',raw=b'GET /stats HTTP/1.1\r\nhOST: evil.com\r\n\r\n'),'space',host(b'',raw=b'GET /stats HTTP/1.1\r\nHost : evil.com\r\n\r\n'))
for m in ['POST','PUT','DELETE','OPTIONS','TRACE','HEAD','FOO']: say('method',m,host(b'',raw=m.encode()+b' /stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n'))
for path in ['/../etc/passwd','//','/stats?x=1','/%00','/stats/','/'+'a'*9000,'*','/stats%2f']: say('path',path[:20],host(b'localhost',path))
RR=random.Random(5)
for i in range(3000):
    raw=bytearray(b'GET /stats HTTP/1.1\r\nHost: localhost\r\nX: y\r\n\r\n')
    for _ in range(RR.randrange(1,6)): raw[RR.randrange(len(raw))]=RR.randrange(256)
    try: s=socket.create_connection(('127.0.0.1',p.hport)); s.sendall(raw); s.close()
    except OSError: pass
say('http mutated 3000 seed 5',hz(3),'alive',p.alive(),'rss %.0f'%p.rss(),'fds',p.nfd(),'stop',p.stop())
