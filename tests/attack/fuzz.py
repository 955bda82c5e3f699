"""fuzz.py SEED NFRAMES [asan|release]: mutated frames of each type; psd must live, and a fresh good worker must be served every 500 frames."""
from psc import *
import math
seed=int(sys.argv[1]); N=int(sys.argv[2]); which=sys.argv[3] if len(sys.argv)>3 else 'asan'
R=random.Random(seed)
dd='BUILD%d'%seed; subprocess.run(['rm','-rf',dd]); os.makedirs(dd)
p=Psd('--data-dir',dd,'--lease','2s','--join-timeout','2s','--memory-max','512M','--checkpoint-every','2s','--log-max','64M','--frame-max','4M','--connections-per-address','4096',*(['--durability',['none','async','fsync'][seed%3]]),shards=1+seed%2,
  bin='BUILD' if which=='asan' else None,log='BUILD%d.log'%seed,env={'ASAN_OPTIONS':'detect_leaks=1:abort_on_error=0:allocator_may_return_null=1'})
NSH=1+seed%2
EXT=[0,1,2,127,128,255,256,2**31-1,2**31,2**32-1,2**32,2**53-1,2**53,2**53+1,2**62-1,2**62,2**63-1,2**63,2**64-1]
def ext(small=8): return R.choice(EXT) if R.random()<.25 else R.randrange(small)
F32=[0.0,1.0,-1.0,1e-45,3e38,-3.4e38,float('inf'),float('nan'),1e15,1.1e15,1e30]
def rf(): return R.choice(F32) if R.random()<.3 else R.uniform(-1,1)
def txt(n=20):
    r=R.random()
    if r<.5: return ''.join(R.choice('abc/') for _ in range(R.randrange(1,n))).encode()
    if r<.6: return bytes(R.randrange(256) for _ in range(R.randrange(n)))
    if r<.7: return b'a'*R.choice([15,16,31,32,63,64,126,127,128,255,256,2000,5000])
    if r<.8: return R.choice([b'a\0b',b'\0',b'\x1b[31m',b'a\nb',b'\x7f','\u0085'.encode(),b'\xff\xfe',b'\xc0\x80',b'\xed\xa0\x80','é'.encode()*31+b'a','é'.encode()*32,'\u202e'.encode()])
    return b'j%d'%R.randrange(5)
tid=[0]*64; seqs={}
def mkkeys(n,good=True):
    if good:
        ks=sorted({R.choice([R.randrange(50),R.randrange(2**64)]) for _ in range(n)})
        return keys(ks),len(ks)
    return bytes(R.randrange(256) for _ in range(R.randrange(1+n*3))),n
def vals(codec,n,dim,k):
    o=b''
    for _ in range(n):
        if codec==0: o+=b''.join(struct.pack('<f',rf()) for _ in range(dim))
        elif codec in(1,2): o+=bytes(R.randrange(256) for _ in range(2*dim))
        elif codec==3: o+=struct.pack('<f',rf())+bytes(R.randrange(256) for _ in range(dim))
        elif codec==4: o+=b''.join(struct.pack('<f',rf()) for _ in range((dim+255)//256))+bytes(R.randrange(256) if dim>=8 else R.randrange(1<<dim) for _ in range((dim+7)//8))
        elif codec==5:
            ix=sorted(R.sample(range(dim),min(k,dim))) if k else []
            o+=b''.join(struct.pack('<H',i) for i in ix)+b''.join(struct.pack('<f',rf()) for _ in ix)
        else: o+=bytes(R.randrange(256) for _ in range(dim))
    return o
DIMS=[2,2,2,4,300,16,8,1]
def gen(typ,st):
    if typ==HELLO: return hello_head(R.choice(['worker','reader','operator',txt()]),R.choice([0,0,1,2**32-1,7]),R.choice([0,0,ext()]),txt(),ext(3),ext(3),txt(),ext(4)),b''
    if typ==JOIN: return join_head(R.choice(['j%d'%R.randrange(4),txt()]),ext(4),R.choice([4,4,4,ext(5)]),R.choice([st['inc'],ext(20)]),R.choice([1,2,3,ext(5)]),R.choice([0,4,ext()]),R.choice([0,0,ext(20)]),ext(5),txt(),ext(2)),b''
    if typ==TABLE:
        i=R.randrange(8)
        if R.random()<.6: s=spec('tab%d'%i,DIMS[i],optim=i%6,eps=1e-8,kind=0)
        elif R.random()<.5: s=spec('den%d'%R.randrange(8),R.choice([4,64]),kind=1,n_floats=R.choice([1,100,1000,2**40,ext()]),optim=R.randrange(6),eps=1e-8)
        else:
            s=fb(1,txt())+fv(2,ext(3))+fv(3,R.choice([1,2,16384,16385,ext()]))+fv(4,ext())+fv(5,ext())+fv(6,ext(4))+ff(7,rf())+fv(8,ext(7))+fb(9,b''.join(ff(j,rf()) for j in range(1,13)))
            s+=b''.join(fv(j,ext(4)) for j in (10,11,12,13))+ff(14,rf())+ff(15,rf())+ff(16,rf())+b''.join(fv(j,ext(4)) for j in range(17,28) if R.random()<.4)
        return fb(1,s)+fv(2,R.choice([0,0,1,ext(3)])),b''
    if typ==PULL:
        secs=[];body=b''
        for _ in range(R.choice([0,1,1,2,3,R.randrange(258)])):
            kb,n=mkkeys(R.randrange(6),R.random()<.8)
            if R.random()<.1: n=ext(10)
            secs.append(section(ext(16) if R.random()<.1 else R.randrange(16),R.choice([0,0,0,ext(3)]),R.choice([0,0,1,2,3,ext(7)]),0 if R.random()<.9 else ext(),n,len(kb) if R.random()<.95 else ext(10),0 if R.random()<.95 else ext(),R.random()<.1)); body+=kb
        return pull_head(R.choice([0,st['clk'],ext(5)]),R.choice([1,10,200,ext()]),secs,R.choice([0,0,ext()])),body
    if typ==PUSH:
        secs=[];body=b''
        for _ in range(R.choice([0,1,1,1,2,3,R.randrange(258) if R.random()<.05 else 1])):
            i=R.randrange(8); t=st['tids'].get(i,ext(16)) if R.random()<.95 else ext(16)
            codec=R.choice([0,0,1,2,3,4,5,6]); k=R.choice([0,1,1,2,DIMS[i],ext()]) if codec==5 else (0 if R.random()<.95 else ext())
            kb,n=mkkeys(R.randrange(6),R.random()<.85)
            v=vals(codec,n,DIMS[i],min(k,DIMS[i]))
            if R.random()<.1: v=v[:R.randrange(len(v)+1)]
            secs.append(section(t,R.choice([0,0,0,1,ext(3)]),codec,k,n if R.random()<.95 else ext(9),len(kb) if R.random()<.97 else ext(9),len(v) if R.random()<.97 else ext(99),R.random()<.02)); body+=kb+v
        st['seq']+=1
        return push_head(st['seq'] if R.random()<.9 else ext(20),R.choice([st['clk'],st['clk'],ext(9)]),ext(100),R.random()<.6,secs),body
    if typ==BEAT: return fv(1,ext())+b''.join(fbz(2,fv(1,ext(5))+fv(2,R.choice([1,2,3,st['inc'],ext()]))+fv(3,ext())+fv(4,R.randrange(2))) for _ in range(R.choice([0,1,2,16,17,40]))),b''
    if typ==LEAVE: return fv(1,ext()),b''
    if typ==ADMIN: return fb(1,R.choice(['status','tables','workers','why','stats','row','drop','set','drop-check','set-check','checkpoint',txt()]))+fb(2,R.choice([b'',txt(),b'5 tab0',b'j1',b'j1 lr=%g'%rf(),b'j1 '+txt(),b'99999999999999999999999 tab0',b'1 den1'])),b''
    return txt(),txt(50)
def mutate(b):
    b=bytearray(b)
    for _ in range(R.choice([1,1,2,5])):
        if not b: b+=b'\0'; continue
        r=R.random(); i=R.randrange(len(b))
        if r<.4: b[i]^=1<<R.randrange(8)
        elif r<.6: b[i]=R.choice([0,1,127,128,255])
        elif r<.75: del b[i:i+R.randrange(1,5)]
        elif r<.9: b[i:i]=bytes(R.randrange(256) for _ in range(R.randrange(1,5)))
        else: b=b[:i]
    return bytes(b)
T={}; ST={}; sent=0; closed=0; conns=0
import re
def drain(c,t=0.0,st={}):
    global closed
    while True:
        r,_,_=select.select([c.s],[],[],t)
        if not r: return True
        try: c.s.settimeout(5); rp=c.recv()
        except (Closed,OSError): closed+=1; return False
        m=re.search(r'(\d+) is next',rp.text)
        if m: st['seq']=int(m[1])-1
        try: ST[(rp.typ,rp.st)]=ST.get((rp.typ,rp.st),0)+1
        except (Closed,OSError): closed+=1; return False
def newconn():
    global conns
    conns+=1
    role=R.choice(['worker']*7+['reader','operator'])
    try:
        c=C(p.port,role=role,shard=0xffffffff if role=='operator' else R.randrange(NSH),flags=R.choice([0,2]))
    except (Refused,Closed,OSError) as e: return None,None
    st=dict(role=role,inc=int(time.time()*1000)+R.randrange(1000),clk=0,seq=0,tids={})
    try:
        if role=='worker' and R.random()<.85:
            m=R.randrange(1,4); n=R.choice([1,1,2])
            r=c.join(job='m%d_%d_%d'%(m,n,R.randrange(3)),rank=R.randrange(n),n=n,inc=st['inc'],mode=m,bound=2 if m==2 else 0)
            for i in R.sample(range(8),3):
                r=c.table('tab%d'%i,dim=DIMS[i],optim=i%6,eps=1e-8)
                if r.st==0: st['tids'][i]=r.n(3)
    except Closed: return None,None
    return c,st
WAITS={}
def goodcheck():
    for sh in range(NSH):
        c=C(p.port,shard=sh,timeout=20); e=time.time()+9
        while True:
            j=c.join(job='good%d'%R.randrange(10**9),inc=1)
            if j.st not in (-28,-16) or time.time()>e: break
            WAITS[j.st]=WAITS.get(j.st,0)+1; time.sleep(.2)
        assert j.st==0,j
        t=c.table('good',dim=2); assert t.st==0,t
        k=next(k for k in range(10**6*R.randrange(9),10**9) if shard_of(k,NSH)==sh)
        a=c.pull(t.n(3),[k],0); assert a.st==0,a
        r=c.push(t.n(3),[k],[(1,2)],1); assert r.st==0,r
        b=c.pull(t.n(3),[k],1); assert all(abs(x-(y-d))<=1e-3*(1+abs(y)) or not math.isfinite(y) or abs(y)>1e6 for x,y,d in zip(b.rows[0],a.rows[0],(1,2))),(a.rows,b.rows)
        c.call(LEAVE); c.close()
t0=time.time(); goodcheck()
ALL=[HELLO,JOIN,TABLE,PULL,PUSH,BEAT,LEAVE,ADMIN]
maxrss=0
try:
  while sent<N:
    c,st=newconn()
    if not c: continue
    for _ in range(R.randrange(1,60)):
        typ=R.choice([PUSH]*6+[PULL]*5+[TABLE,BEAT,JOIN]*2+([ADMIN] if st['role']!='operator' else [ADMIN]*6)+([HELLO,LEAVE] if R.random()<.2 else [PUSH]))
        if st['role']=='operator' and R.random()<.8: typ=ADMIN
        if typ==ADMIN and st['role']!='operator' and R.random()<.8: typ=PULL
        h,b=gen(typ,st); fl=0
        r=R.random()
        if r<.12: h=mutate(h)
        elif r<.2: b=mutate(b)
        if typ==PUSH and R.random()<.5: st['clk']+=1
        h=h[:65535]
        if b and R.random()<.1: b=zc(b); fl|=1; b=mutate(b) if R.random()<.3 else b
        if R.random()<.1: fl|=2
        f=frame(typ,h,b,R.choice([sent,0,M]),fl)
        r=R.random(); brk=False
        if r<.015: f=mutate(f); 
        elif r<.02: f=frame(typ,h,b,1,fl,hl=R.randrange(65536)); 
        elif r<.023: f=frame(typ,h,b,1,fl,bl=R.choice([2**32-1,2**31,4<<20,(4<<20)+1])); 
        elif r<.026: f=frame(R.randrange(256),h,b,1,R.randrange(256))
        try: c.s.settimeout(5); c.s.sendall(f)
        except OSError: closed+=1; break
        sent+=1; T[typ]=T.get(typ,0)+1
        if R.random()<.5 and not drain(c,.0005 if R.random()<.3 else 0,st): break
        if sent%500==0: goodcheck()
        if sent%5000==0: maxrss=max(maxrss,p.rss()); say('fuzz',seed,sent,'rss %.0f'%p.rss(),'fd',p.nfd())
    drain(c,.002); c.close()
    if not p.alive(): break
  goodcheck()
except Exception as e:
  import traceback; traceback.print_exc(); say('fuzz',seed,'EXC',repr(e),'after',sent,'alive',p.alive())
say('fuzz seed',seed,'frames',sent,'conns',conns,'closed',closed,'types',T,'joinwaits',WAITS,'alive',p.alive(),'maxrss %.0f'%maxrss,'secs %.0f'%(time.time()-t0))
say('fuzz seed',seed,'statuses',sorted(ST.items()))
rc=p.stop(60); say('fuzz seed',seed,'stop rc',rc)
log=open(p.log,errors='replace').read()
for w in ('ERROR: AddressSanitizer','runtime error','LeakSanitizer','assert','Assertion'):
    if w in log: say('fuzz seed',seed,'LOG HAS',w,log[log.find(w)-200:log.find(w)+1500])
# restart on its data: must come up
try:
    p.start(); goodcheck(); say('fuzz seed',seed,'restart ok, stop rc',p.stop(60))
except Exception as e: say('fuzz seed',seed,'RESTART',repr(e))
v=subprocess.run([BIN+'/psctl','verify',dd],capture_output=True,text=True); say('verify rc',v.returncode,v.stdout[-300:],v.stderr[-300:])
