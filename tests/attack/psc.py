"""Attack client for psd, from proto/README.md alone."""
import ctypes, struct, socket, time, subprocess, os, random, select, threading, json, signal, sys
BIN=os.environ.get('PSBIN','BUILD')
_isal=ctypes.CDLL('libisal.so.2'); _isal.crc32_iscsi.argtypes=[ctypes.c_char_p,ctypes.c_int,ctypes.c_uint]; _isal.crc32_iscsi.restype=ctypes.c_uint
_z=ctypes.CDLL('libzstd.so.1'); _z.ZSTD_compressBound.restype=ctypes.c_size_t; _z.ZSTD_compressBound.argtypes=[ctypes.c_size_t]
_z.ZSTD_compress.restype=ctypes.c_size_t; _z.ZSTD_compress.argtypes=[ctypes.c_char_p,ctypes.c_size_t,ctypes.c_char_p,ctypes.c_size_t,ctypes.c_int]
_x=ctypes.CDLL('libxxhash.so.0'); _x.XXH3_64bits.restype=ctypes.c_uint64; _x.XXH3_64bits.argtypes=[ctypes.c_char_p,ctypes.c_size_t]
def xxh3(b): return _x.XXH3_64bits(b,len(b))
def crc(b): return _isal.crc32_iscsi(bytes(b),len(b),0xffffffff)^0xffffffff
assert crc(b'123456789')==0xE3069283
def zc(b,level=1):
    n=_z.ZSTD_compressBound(len(b)); o=ctypes.create_string_buffer(n); r=_z.ZSTD_compress(o,n,b,len(b),level); return o.raw[:r]
def vi(n):
    n&=(1<<64)-1; o=bytearray()
    while n>=128: o.append(n&127|128); n>>=7
    o.append(n); return bytes(o)
def fv(no,v): return b'' if not v else vi(no*8)+vi(v)
def fvz(no,v): return vi(no*8)+vi(v)
def fb(no,b):
    if isinstance(b,str): b=b.encode()
    return b'' if not b else vi(no*8+2)+vi(len(b))+b
def ff(no,x): return b'' if x==0 else vi(no*8+5)+struct.pack('<f',x)
def dec(b):
    d={}; i=0
    def rv(i):
        s=0;v=0
        while True:
            c=b[i]; i+=1; v|=(c&127)<<s; s+=7
            if c<128: return v,i
    while i<len(b):
        t,i=rv(i)
        if t&7==0: v,i=rv(i)
        elif t&7==2: n,i=rv(i); v=b[i:i+n]; i+=n
        elif t&7==5: v=b[i:i+4]; i+=4
        elif t&7==1: v=b[i:i+8]; i+=8
        else: raise ValueError('kind %d'%(t&7))
        d.setdefault(t>>3,[]).append(v)
    return d
def zz(v): return (v>>1)^-(v&1)
def frame(typ,head=b'',body=b'',rid=1,flags=0,magic=b'PSD1',hl=None,bl=None,c=None):
    h=magic+struct.pack('<BBHIQ',typ,flags,len(head) if hl is None else hl,len(body) if bl is None else bl,rid&((1<<64)-1))
    if flags&2:
        a=crc(h+head); t=struct.pack('<I',crc(h+head+body))
    else: a=crc(h+head+body); t=b''
    if c is not None: a=c
    return h+struct.pack('<I',a)+head+body+t
HELLO,JOIN,TABLE,PULL,PUSH,BEAT,LEAVE,ADMIN=1,3,5,7,9,11,13,15
class Closed(Exception): pass
class Refused(Exception):
    def __init__(s,st,text): super().__init__(st,text); s.st=st; s.text=text
class Reply:
    def __init__(s,typ,rid,head,body):
        s.typ=typ; s.rid=rid; s.h=dec(head); s.body=body; s.head=head
        s.st=zz(s.h.get(1,[0])[0]); s.text=s.h.get(2,[b''])[0].decode('utf8','replace')
    def n(s,no): return s.h.get(no,[0])[0]
    def __repr__(s): return 'R(t%d rid%d st%d %r %r body%d)'%(s.typ,s.rid,s.st,s.text,{k:v for k,v in s.h.items() if k>2},len(s.body))
def hello_head(role='worker',shard=0,mapid=0,name='att',vmin=1,vmax=1,token='',flags=0):
    return fv(1,vmin)+fv(2,vmax)+fb(3,role)+fb(4,token)+fv(5,shard)+fv(6,mapid)+fb(7,name)+fv(8,flags)
def join_head(job='j',rank=0,n=1,inc=1,mode=1,bound=0,clock=0,acked=0,name='att',relays=0):
    return fb(1,job)+fv(2,rank)+fv(3,n)+fv(4,inc)+fv(5,mode)+fv(6,bound)+fv(7,clock)+fv(8,acked)+fb(9,name)+fv(10,relays)
def spec(name='t',dim=2,lr=1.0,kind=0,n_floats=0,optim=0,mode=0,bound=0,extra=b'',seed=0,eps=0):
    return fb(1,name)+fv(2,kind)+fv(3,dim)+fv(4,n_floats)+fv(5,seed)+fv(8,optim)+fb(9,ff(1,lr)+ff(2,eps))+fv(17,mode)+fv(18,bound)+extra
def section(tid=0,op=0,codec=0,k=0,nk=0,kb=0,vb=0,state=0):
    return fv(1,tid)+fv(2,op)+fv(3,codec)+fv(4,k)+fv(5,nk)+fv(6,kb)+fv(7,vb)+fv(8,state)
def fbz(no,b): return vi(no*8+2)+vi(len(b))+b
def keys(ks):
    o=b'';p=0
    for i,k in enumerate(ks): o+=vi(k-p); p=k
    return o
def push_head(seq=1,clock=0,ns=1,tick=1,secs=()): return fv(1,seq)+fv(2,clock)+fv(3,ns)+fv(4,tick)+b''.join(fbz(5,s) for s in secs)
def pull_head(clock=0,deadline=0,secs=(),unf=0): return fv(1,clock)+fv(2,deadline)+b''.join(fbz(3,s) for s in secs)+fv(4,unf)
M=(1<<64)-1
def mix(x):
    x=(x+0x9e3779b97f4a7c15)&M; x=((x^x>>30)*0xbf58476d1ce4e5b9)&M; x=((x^x>>27)*0x94d049bb133111eb)&M; return x^x>>31
def shard_of(key,nsh,salt=0): return (mix(key^salt)>>52)*nsh//4096
assert mix(0)>>52==3618 and mix(1)>>52==2320
assert xxh3(b'top_0_W')==0xa59dde20c3f5e975
class C:
    def __init__(s,port,host='127.0.0.1',src=None,timeout=10,role='worker',shard=0,mapid=None,hello=True,name='att',**kw):
        s.s=socket.socket(); s.s.settimeout(timeout)
        if src: s.s.bind((src,0))
        s.s.connect((host,port)); s.s.setsockopt(socket.IPPROTO_TCP,socket.TCP_NODELAY,1); s.rid=0; s.buf=b''; s.pend={}
        if hello:
            s.hr=s.call(HELLO,hello_head(role,shard,mapid or 0,name,**kw))
            if s.hr.st: raise Refused(s.hr.st,s.hr.text)
    def fileno(s): return s.s.fileno()
    def send(s,typ,head=b'',body=b'',flags=0,rid=None):
        if rid is None: s.rid+=1; rid=s.rid
        s.s.sendall(frame(typ,head,body,rid,flags)); return rid
    def _need(s,n):
        if len(s.buf)<n:
            parts=[s.buf]; have=len(s.buf)
            while have<n:
                try: d=s.s.recv(max(65536,n-have))
                except (ConnectionResetError,BrokenPipeError): raise Closed('reset')
                if not d: raise Closed('eof')
                parts.append(d); have+=len(d)
            s.buf=b''.join(parts)
        r=s.buf[:n]; s.buf=s.buf[n:]; return r
    def recv(s):
        h=s._need(24)
        assert h[:4]==b'PSD1',h
        typ,fl,hl,bl,rid=struct.unpack('<BBHIQ',h[4:20]); c,=struct.unpack('<I',h[20:24])
        p=s._need(hl+bl); head=p[:hl]; body=p[hl:]
        if fl&2:
            t,=struct.unpack('<I',s._need(4)); assert c==crc(h[:20]+head); assert t==crc(h[:20]+p)
        else: assert c==crc(h[:20]+p)
        assert fl&~3==0
        return Reply(typ,rid,head,body)
    def wait(s,rid):
        while rid not in s.pend:
            r=s.recv(); s.pend[r.rid]=r
        return s.pend.pop(rid)
    def call(s,typ,head=b'',body=b'',flags=0): 
        try: r=s.wait(s.send(typ,head,body,flags))
        except (BrokenPipeError,ConnectionResetError): raise Closed('reset')
        assert r.typ==typ+1; return r
    def close(s):
        try: s.s.close()
        except OSError: pass
    def join(s,**kw): return s.call(JOIN,join_head(**kw))
    def table(s,name='t',must=0,**kw): return s.call(TABLE,fb(1,spec(name,**kw))+fv(2,must))
    def push(s,tid,ks,rows,seq,clock=0,tick=1,op=0,ns=1):
        kb=keys(ks); vb=b''.join(struct.pack('<%df'%len(r),*r) for r in rows)
        return s.call(PUSH,push_head(seq,clock,ns,tick,[section(tid,op=op,nk=len(ks),kb=len(kb),vb=len(vb))] if ks else []),kb+vb)
    def pull(s,tid,ks,clock=0,deadline=0,dim=2):
        kb=keys(ks); r=s.call(PULL,pull_head(clock,deadline,[section(tid,nk=len(ks),kb=len(kb))]),kb)
        if r.st==0: r.rows=[struct.unpack_from('<%df'%dim,r.body,i*4*dim) for i in range(len(ks))]
        return r
    def admin(s,cmd,arg=''): return s.call(ADMIN,fb(1,cmd)+fb(2,arg))
def freeport():
    while True:
        p=random.SystemRandom().randrange(12000,30000)
        s=socket.socket()
        try: s.bind(('127.0.0.1',p)); return p
        except OSError: pass
        finally: s.close()
import atexit
_all=[]
@atexit.register
def _killall():
    for q in _all:
        if q.p and q.p.poll() is None: q.p.kill(); q.p.wait()
class Psd:
    def __init__(s,*args,shards=1,bin=None,log=None,wait=True,http=True,port=None,hport=None,cluster=None,env=None,pre=()):
        s.port=port or freeport(); s.hport=hport or freeport(); s.log=log or 'BUILD%d.log'%s.port
        os.makedirs('BUILD',exist_ok=True)
        s.cmd=list(pre)+[bin or BIN+'/psd','--listen','127.0.0.1:%d'%s.port,'--http','127.0.0.1:%d'%s.hport if http else 'off','--shards',str(shards)]+list(map(str,args))
        s.env=dict(os.environ,**(env or {}))
        s.p=None; _all.append(s); s.start(wait)
    def start(s,wait=True,extra=()):
        s.f=open(s.log,'ab'); s.p=subprocess.Popen(s.cmd+list(extra),stdout=s.f,stderr=s.f,env=s.env)
        if wait: s.ready()
    def ready(s,t=20):
        end=time.time()+t
        while time.time()<end:
            if s.p.poll() is not None: raise RuntimeError('psd ended rc %s: %s'%(s.p.returncode,s.tail()))
            try:
                C(s.port,role='reader',shard=0,timeout=3).close(); return
            except (OSError,Closed,Refused): time.sleep(.02)
        raise RuntimeError('not ready '+s.tail())
    def tail(s,n=800):
        with open(s.log,'rb') as f: return f.read()[-n:].decode('utf8','replace')
    def rss(s):
        for l in open('/proc/%d/status'%s.p.pid):
            if l.startswith('VmRSS'): return int(l.split()[1])/1024
    def nfd(s): return len(os.listdir('/proc/%d/fd'%s.p.pid))
    def kill(s): s.p.kill(); s.p.wait()
    def stop(s,t=30):
        s.p.terminate()
        try: return s.p.wait(t)
        except subprocess.TimeoutExpired: s.p.kill(); s.p.wait(); return 'HUNG'
    def alive(s): return s.p.poll() is None
    def stats(s):
        c=C(s.port,role='operator',shard=0xffffffff); r=c.admin('stats'); c.close(); return json.loads(r.body)
def pct(l,p): l=sorted(l); return l[min(len(l)-1,int(len(l)*p))] if l else None
class GoodWorker(threading.Thread):
    """A separate PROCESS would be better; see good.py"""
    pass
LOG=open('BUILD','a')
def say(*a):
    t=time.strftime('%H:%M:%S ')+' '.join(map(str,a)); print(t,flush=True); LOG.write(t+'\n'); LOG.flush()
