"""codec.py SEED N: pushes with all codecs against an exact model (SGD lr 1, table dim D); bad k, bad codecs, unused bits, -128, state sections, pulls in all codecs."""
from psc import *
seed=int(sys.argv[1]); N=int(sys.argv[2]); R=random.Random(seed)
p=Psd('--lease','60s'); c=C(p.port); assert c.join(job='x',inc=1).st==0
f32=lambda x: struct.unpack('<f',struct.pack('<f',x))[0]
def bf(x):
    b=struct.unpack('<I',struct.pack('<f',x))[0]; return struct.unpack('<f',struct.pack('<I',((b+0x7fff+(b>>16&1))>>16&0xffff)<<16))[0], ((b+0x7fff+(b>>16&1))>>16)&0xffff
def h2f(h): return struct.unpack('<e',struct.pack('<H',h))[0]
seq=0; faults=0; st={}
def F(*a):
    global faults; faults+=1; say('CODEC FAULT',seed,*a)
model={}  # (dim,key)-> row
tabs={}
def tab(dim):
    if dim not in tabs: t=c.table('t%d'%dim,dim=dim); assert t.st==0,t; tabs[dim]=t.n(3)
    return tabs[dim]
def enc(codec,x,k):
    """returns bytes, decoded"""
    d=len(x)
    if codec==0: return struct.pack('<%df'%d,*x),[f32(v) for v in x]
    if codec==1: q=[bf(f32(v)) for v in x]; return struct.pack('<%dH'%d,*[a[1] for a in q]),[a[0] for a in q]
    if codec==2: q=struct.pack('<%de'%d,*x); return q,list(struct.unpack('<%de'%d,q))
    if codec==3:
        s=f32(max(abs(f32(v)) for v in x)/127); q=[0]*d if s==0 else [max(-127,min(127,R.randrange(-127,128) if R.random()<.1 else round(v/s))) for v in x]
        return struct.pack('<f',s)+struct.pack('<%db'%d,*q),[f32(v*s) for v in q]
    if codec==4:
        nb=(d+255)//256; sc=[f32(R.choice([0,.5,1.25,3e-3,1e-40,7.1])) for _ in range(nb)]; bits=[R.randrange(2) for _ in range(d)]
        by=bytearray((d+7)//8)
        for i,b in enumerate(bits): by[i>>3]|=b<<(i&7)
        return struct.pack('<%df'%nb,*sc)+bytes(by),[sc[i//256] if b else -sc[i//256] for i,b in enumerate(bits)]
    if codec==5:
        ix=sorted(R.sample(range(d),k)); vs=[f32(x[i]) for i in ix]; o=[0.]*d
        for i,v in zip(ix,vs): o[i]=v
        return struct.pack('<%dH'%k,*ix)+struct.pack('<%df'%k,*vs),o
def rowbytes(codec,d,k): return [4*d,2*d,2*d,4+d,4*((d+255)//256)+(d+7)//8,6*k][codec]
for n in range(N):
    secs=[];body=b'';upd=[];bad=None
    dims=R.sample([1,2,3,7,8,16,255,256,257,300,513],R.randrange(1,5)); mutate=R.random()<.3; mi=R.randrange(len(dims))
    for di,d in enumerate(dims):
        tid=tab(d); codec=R.randrange(6); k=R.randrange(1,d+1) if codec==5 else 0; nk=R.choice([0,1,2,5,17]); ks=sorted(R.sample(range(R.choice([20,5000])),nk)); rows=[enc(codec,[R.choice([0,R.gauss(0,1),R.gauss(0,1e-3),R.randrange(-99,99)]) for _ in range(d)],k) for _ in ks]
        op=0; kb=keys(ks); vb=b''.join(r[0] for r in rows); ik=k
        if R.random()<.15: op=1
        if mutate and di==mi and nk:
            kind=R.choice(['k0','kbig','k16385','codec6','state','op2','vbshort','vblong','kshort','korder','q128','bits','inf','nan','dup','ixdesc','ixbig','neg scale','nan scale','inf scale','leb long','notable','k_with_other'])
            b2=bytearray(vb)
            if kind=='k0' and codec==5: ik=0; bad=kind
            elif kind=='kbig' and codec==5: ik=d+1; vb=bytes(6*(d+1)*nk); bad=kind
            elif kind=='k16385' and codec==5: ik=16385; bad=kind
            elif kind=='codec6': codec=R.choice([6,7,255,2**31]); bad=kind
            elif kind=='state': bad=kind
            elif kind=='op2': op=R.choice([2,2**31]); bad=kind
            elif kind=='vbshort' and vb: vb=vb[:-R.choice([1,len(vb)//nk])]; bad=kind
            elif kind=='vblong': vb+=bytes(R.choice([1,rowbytes(codec,d,k)])); bad=kind
            elif kind=='kshort' and len(kb)>1: kb=kb[:-1]; bad=kind
            elif kind=='korder' and nk>1: kb=vi(ks[0])+b'\0'+b''.join(vi(1) for _ in range(nk-2)); bad=kind
            elif kind=='q128' and codec==3: b2[4]=0x80; vb=bytes(b2); bad=kind
            elif kind=='bits' and codec==4 and d%8: b2[4*((d+255)//256)+(d+7)//8-1]|=0x80; vb=bytes(b2); bad=kind
            elif kind in('inf','nan') and codec==0: vb=vb[:-4]+struct.pack('<f',float(kind)); bad=kind
            elif kind=='dup' and len(dims)>1: bad=kind
            elif kind=='ixdesc' and codec==5 and k>1: vb=struct.pack('<HH',1,1)+vb[4:]; bad=kind
            elif kind=='ixbig' and codec==5: vb=vb[:2*(k-1)]+struct.pack('<H',R.choice([d,65535]))+vb[2*k:]; bad=kind
            elif kind in('nan scale','inf scale') and codec in(3,4): vb=struct.pack('<f',float(kind.split()[0]))+vb[4:]; bad=kind
            elif kind=='neg scale' and codec in(3,4): vb=struct.pack('<f',-1.)+vb[4:]; bad='maybe neg scale'
            elif kind=='leb long' and kb: kb=kb[:-1]+bytes([kb[-1]|0x80])+b'\0'; bad=kind
            elif kind=='notable': tid=999999; bad=kind
            elif kind=='k_with_other' and codec!=5: ik=5; bad='maybe k other'
        secs.append([tid,op,codec,ik,nk,len(kb),len(vb),1 if bad=='state' and di==mi else 0]); body+=kb+vb
        for key,r in zip(ks,rows): upd.append((d,key,r[1],op))
    if bad=='dup': secs[(mi+1)%len(secs)][0]=secs[mi][0]
    seq+=1; h=push_head(seq,0,1,0,[section(*s) for s in secs]); fl=0; b3=body
    if body and R.random()<.3: b3=zc(body,R.choice([1,19])); fl=1
    if R.random()<.3: fl|=2
    r=c.call(PUSH,h,b3,fl); st[(bad,r.st)]=st.get((bad,r.st),0)+1
    if bad and not bad.startswith('maybe'):
        if r.st==0: F('accepted',bad,secs,r)
        head=bad in('k0','k16385','codec6','state','op2') 
        # number used?
        r2=c.call(PUSH,push_head(seq,0,1,0,[])); used=bool(r2.n(7)); st[('used',bad,r.st,used)]=st.get(('used',bad,r.st,used),0)+1
        continue
    if bad is None and r.st: F('refused good',secs,r); continue
    if bad and r.st: c.call(PUSH,push_head(seq,0,1,0,[])); continue
    if bad:
        # maybe: re-read
        for d,key,x,op in upd: rr=c.pull(tab(d),[key],dim=d); model[(d,key)]=list(rr.rows[0])
        continue
    for d,key,x,op in upd:
        m=model.setdefault((d,key),[0.]*d)
        if op==1: model[(d,key)]=list(x)
        else: model[(d,key)]=[f32(a-b) for a,b in zip(m,x)]
    if n%5==0:
        for d in dims:
            ks=sorted({u[1] for u in upd if u[0]==d}|{R.randrange(5000)})
            rr=c.pull(tab(d),ks,dim=d)
            for k_,v in zip(ks,rr.rows):
                w=model.get((d,k_),[0.]*d)
                if list(v)!=w: F('row',d,k_,[(i,a,b_) for i,(a,b_) in enumerate(zip(v,w)) if a!=b_][:3]); model[(d,k_)]=list(v)
            # pulls in other codecs
            cd=R.randrange(1,6); kb=keys(ks); kk=R.choice([0,1,d,d+1]) if cd==5 else R.choice([0,0,3]); rr=c.call(PULL,pull_head(0,0,[section(tab(d),codec=cd,k=kk,nk=len(ks),kb=len(kb))]),kb); st[('pull',cd,'k',0 if kk==0 else 'big' if kk>d else 'ok',rr.st)]=st.get(('pull',cd,'k',0 if kk==0 else 'big' if kk>d else 'ok',rr.st),0)+1
            if rr.st==0:
                rb=rowbytes(cd,d,kk); 
                if len(rr.body)!=rb*len(ks): F('pull length',cd,d,kk,len(rr.body)); continue
                for i,k_ in enumerate(ks):
                    w=model.get((d,k_),[0.]*d); x=rr.body[i*rb:(i+1)*rb]
                    if cd==1: g=[struct.unpack('<f',struct.pack('<I',u<<16))[0] for u in struct.unpack('<%dH'%d,x)]; e=[bf(v)[0] for v in w]
                    elif cd==2: g=list(struct.unpack('<%de'%d,x)); e=[struct.unpack('<e',struct.pack('<e',v))[0] for v in w]
                    elif cd==3:
                        s=f32(max(map(abs,w))/127); 
                        if struct.unpack('<f',x[:4])[0]!=s: F('int8 scale',struct.unpack('<f',x[:4])[0],s)
                        g=list(struct.unpack('<%db'%d,x[4:])); e=[max(-127,min(127,round(f32(v/s)))) if s else 0 for v in w]
                    elif cd==5:
                        ix=sorted(sorted(range(d),key=lambda i:(-abs(w[i]),i))[:kk]); g=list(struct.unpack('<%dH%df'%(kk,kk),x)) if kk%2==0 or 1 else 0
                        g=list(struct.unpack_from('<%dH'%kk,x))+list(struct.unpack_from('<%df'%kk,x,2*kk)); e=ix+[w[i] for i in ix]
                    else:
                        nb=(d+255)//256; g=[x[4*nb+(i>>3)]>>(i&7)&1 for i in range(d)]; e=[1 if v>=0 else 0 for v in w]
                    if g!=e: F('pull codec',cd,'dim',d,'key',k_,[(i,a,b_,w[i] if i<d else 0) for i,(a,b_) in enumerate(zip(g,e)) if a!=b_][:3])
            # state
            kk=[int(x) for x in ks]; rr=c.call(PULL,pull_head(0,0,[section(tab(d),nk=len(ks),kb=len(kb),state=1)]),kb)
            if rr.st: F('state pull',rr)
            else:
                fl=rr.body[9:9+(len(ks)+7)//8]; nrow=sum(bin(x).count('1') for x in fl); have=[k_ for k_ in ks if (d,k_) in model]
                if nrow!=len(have): F('state flags',nrow,len(have))
                off=9+(len(ks)+7)//8
                for k_ in have:
                    g=list(struct.unpack_from('<%df'%d,rr.body,off)); off+=4*d
                    if g!=model[(d,k_)]: F('state row',d,k_)
                if off!=len(rr.body): F('state length',off,len(rr.body))
for k in sorted(st,key=str): print(k,st[k])
say('codec seed',seed,'pushes',N,'faults',faults,'alive',p.alive(),'stop',p.stop())
