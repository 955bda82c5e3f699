from psc import *
import resource; resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
p=Psd(pre=('nice','-n','-12'))
def req(b,t=3,maxn=1<<22):
    s=socket.create_connection(('127.0.0.1',p.hport)); s.settimeout(t); x=time.time()
    try: s.sendall(b)
    except OSError as e: pass
    d=b''
    try:
        while len(d)<maxn:
            k=s.recv(65536)
            if not k: break
            d+=k
    except OSError as e: d+=b'' if d else repr(e).encode()
    s.close(); return d
G=b'GET /healthz HTTP/1.1\r\nHost: localhost\r\n'
def st(d): return [x.split(b'\r\n')[0][:30] for x in d.split(b'HTTP/1.')[1:]][:4],d.count(b'HTTP/1.')
say('pipelined 5000',st(req((G+b'\r\n')*5000+G+b'Connection: close\r\n\r\n',8)))
say('pipelined stats 200',st(req((G.replace(b'/healthz',b'/stats')+b'\r\n')*200,4))[1])
for n in (1000,8000,16000,32000,1000000,50000000): say('head of',n,st(req(G+b'X: '+b'a'*n+b'\r\n\r\n',1)))
say('100k headers',st(req(G+b'X: a\r\n'*100000+b'\r\n',1))); say('no CRLF 1MB',st(req(b'A'*1000000,1))); say('LF only',st(req(b'GET /healthz HTTP/1.1\nHost: localhost\n\n',1)))
for nm,b in [('CL -1',G+b'Content-Length: -1\r\n\r\n'),('CL huge',G+b'Content-Length: 99999999999999999999\r\n\r\n'),('CL twice',G+b'Content-Length: 0\r\nContent-Length: 5\r\n\r\nabcde'),('CL body smuggle',G+b'Content-Length: 37\r\n\r\nGET /stats HTTP/1.1\r\nHost: evil.com\r\n\r\n'+G+b'\r\n'),('chunked',G+b'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n'+G+b'\r\n'),('0.9',b'GET /healthz\r\n\r\n'),('2.0',b'GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n'),('PRI',b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),('TLS',bytes.fromhex('16030100c8010000c40303')+os.urandom(190)),('NUL',G+b'\0\r\n\r\n'),('folded host',b'GET /healthz HTTP/1.1\r\nHost:\r\n evil.com\r\n\r\n'),('host tab',b'GET /healthz HTTP/1.1\r\nHost:\tlocalhost\t\r\n\r\n'),('host,',b'GET /healthz HTTP/1.1\r\nHost: localhost, evil.com\r\n\r\n'),('host port',b'GET /healthz HTTP/1.1\r\nHost: localhost:99999999\r\n\r\n'),('host port txt',b'GET /healthz HTTP/1.1\r\nHost: localhost:ab\r\n\r\n'),('host userinfo',b'GET /healthz HTTP/1.1\r\nHost: a@localhost\r\n\r\n'),('host 0177.1',b'GET /healthz HTTP/1.1\r\nHost: 0177.1\r\n\r\n'),('host 256.1.1.1',b'GET /healthz HTTP/1.1\r\nHost: 256.1.1.1\r\n\r\n'),('host [::1%25evil.com]',b'GET /healthz HTTP/1.1\r\nHost: [::1%25evil.com]\r\n\r\n'),('host [v1.evil.com]',b'GET /healthz HTTP/1.1\r\nHost: [v1.evil.com]\r\n\r\n'),('host [1:evil]',b'GET /healthz HTTP/1.1\r\nHost: [1:evil]\r\n\r\n'),('host []',b'GET /healthz HTTP/1.1\r\nHost: []\r\n\r\n'),('host _',b'GET /healthz HTTP/1.1\r\nHost: _\r\n\r\n'),('host \\xff',b'GET /healthz HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n'),('host a/b',b'GET /healthz HTTP/1.1\r\nHost: a/b\r\n\r\n'),('host fullwidth dot',b'GET /healthz HTTP/1.1\r\nHost: evil\xe3\x80\x82com\r\n\r\n'),('host localhost%00.evil',b'GET /healthz HTTP/1.1\r\nHost: localhost%00evil\r\n\r\n'),('Origin evil',G+b'Origin: http://evil.com\r\n\r\n')]:
    d=req(b,1); say('  ',nm,st(d),(b'Access-Control' in d) or '')
# slow readers of /metrics with 2000 tables
c=C(p.port); c.join(job='m',inc=1)
for i in range(2000): assert c.table('m%d'%i).st==0
mx=0; ss=[]
for i in range(400):
    s=socket.socket(); s.bind(('127.5.%d.%d'%(i//50,1+i%50),0)); s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,2048); s.settimeout(2)
    try: s.connect(('127.0.0.1',p.hport)); s.sendall(b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'*30); ss.append(s)
    except OSError as e: pass
g=subprocess.Popen(['nice','-n','-12','python3','good2.py',str(p.port),'5','hg'],stdout=subprocess.PIPE,text=True); H=[]
for i in range(40): x=time.time(); d=req(G+b'Connection: close\r\n\r\n',5); H.append((time.time()-x)*1000); mx=max(mx,p.rss()); time.sleep(.1)
say('400 slow readers of /metrics (2000 tables, %d bytes an answer)'%len(req(G.replace(b'/healthz',b'/metrics')+b'Connection: close\r\n\r\n',3)),'healthz p50 %.1f max %.1f ms'%(pct(H,.5),max(H)),'rss %.0f'%mx,'fds',p.nfd(),g.communicate()[0].strip())
time.sleep(8); say('after 10 s fds',p.nfd(),'rss %.0f'%p.rss(),'alive',p.alive(),p.stop())
